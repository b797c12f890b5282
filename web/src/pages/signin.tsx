/** Asks for an API key, on a server that has them. */
import { useEffect, useRef, useState } from "preact/hooks";
import { refusedKey, signIn } from "../lib/api";

export function SignIn() {
  const [given, setGiven] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const submit = (event: Event) => {
    event.preventDefault();
    if (given.trim()) signIn(given.trim());
  };
  return (
    <main class="signin">
      <h1>
        <span class="brand-mark" aria-hidden="true">❯_</span> Sandboxes
      </h1>
      <form onSubmit={submit}>
        {/* For password managers, which keep a key under a name. */}
        <input class="sr-only" type="text" autocomplete="username" value="API key" readOnly tabIndex={-1} aria-hidden="true" />
        <label for="key">API key</label>
        <input
          ref={field}
          id="key"
          type="password"
          autocomplete="current-password"
          value={given}
          onInput={(event) => setGiven(event.currentTarget.value)}
          aria-describedby="key-about"
        />
        <p id="key-about" class="muted">
          You see the sessions that belong to this key. It is kept for this tab alone and sent to this server only.
        </p>
        {refusedKey.value && (
          <p class="error" role="alert">
            {refusedKey.value}
          </p>
        )}
        <button type="submit" class="primary">
          Sign in
        </button>
      </form>
    </main>
  );
}
