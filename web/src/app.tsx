/** The frame around all pages: navigation, connection, theme, help, and signing in. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { key, refusedKey, signOut } from "./lib/api";
import { useShortcuts } from "./lib/keys";
import { connection, followSessions, problem, seen } from "./lib/live";
import { go, link, route } from "./lib/router";
import { nextTheme, theme } from "./lib/theme";
import { FleetPage } from "./pages/fleet";
import { HistoryPage } from "./pages/history";
import { PolicyPage } from "./pages/policy";
import { SessionPage } from "./pages/session";
import { SessionsPage } from "./pages/sessions";
import { SignIn } from "./pages/signin";
import { Dialog } from "./parts/dialog";
import { Empty, Failure } from "./parts/states";

const PAGES = [
  ["sessions", "Sessions"],
  ["fleet", "Fleet"],
  ["policy", "Policy"],
  ["history", "History"],
] as const;

export function App() {
  const needsKey = refusedKey.value !== null;
  useEffect(() => {
    if (needsKey || !seen.value) return;
    const stop = new AbortController();
    void followSessions(stop.signal);
    return () => stop.abort();
  }, [needsKey, key.value, seen.value]);
  return needsKey ? <SignIn /> : <Frame />;
}

function Frame() {
  const [help, setHelp] = useState(false);
  const [page = "sessions", ...rest] = route.value;
  const main = useRef<HTMLElement>(null);
  const before = useRef(page);
  useLayoutEffect(() => {
    // Whoever follows a link hears and sees the new page from its top.
    if (before.current !== page) main.current?.focus();
    before.current = page;
  }, [page]);
  useShortcuts({
    "?": () => setHelp(true),
    "1": () => go("sessions"),
    "2": () => go("fleet"),
    "3": () => go("policy"),
    "4": () => go("history"),
  });
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={link("sessions")}>
          <span class="brand-mark" aria-hidden="true">❯_</span> Sandboxes
        </a>
        <nav aria-label="Pages">
          {PAGES.map(([name, title]) => (
            <a key={name} href={link(name)} aria-current={name === page || (name === "sessions" && page === "session") ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <div class="top-tools">
          <ConnectionState />
          <button type="button" class="quiet" onClick={nextTheme} title="Light, dark, or as the system has it">
            <span aria-hidden="true">{{ system: "◐", light: "☀", dark: "☾" }[theme.value]}</span>
            <span class="sr-only">Theme: {theme.value}</span>
          </button>
          <button type="button" class="quiet" onClick={() => setHelp(true)} title="Keys (?)">
            <span aria-hidden="true">?</span>
            <span class="sr-only">Help with keys</span>
          </button>
          {key.value && (
            <button type="button" class="quiet" onClick={signOut}>
              Sign out
            </button>
          )}
        </div>
      </header>
      <LostBanner />
      <main id="main" ref={main} tabIndex={-1}>
        <Page name={page} rest={rest} />
      </main>
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

function Page({ name, rest }: { name: string; rest: string[] }) {
  const [first, ...more] = rest;
  if (name === "sessions") return <SessionsPage />;
  if (name === "session" && first) return <SessionPage key={first} session_id={first} view={more} />;
  if (name === "fleet") return <FleetPage />;
  if (name === "policy") return <PolicyPage />;
  if (name === "history") return <HistoryPage session_id={first} />;
  return (
    <Empty title="There is no such page.">
      <a href={link("sessions")}>To the sessions</a>
    </Empty>
  );
}

function ConnectionState() {
  const texts = { connecting: "Connecting", live: "Live", lost: "Reconnecting", refused: "Refused" };
  return (
    <span class={`connection connection-${connection.value}`}>
      <span class="dot" aria-hidden="true" />
      {texts[connection.value]}
    </span>
  );
}

function LostBanner() {
  const state = connection.value;
  return (
    <div role="status" aria-live="polite">
      {state === "lost" && <p class="banner">The connection to the server is lost. It is tried again; what you see may be old.</p>}
      {state === "live" && problem.value && <p class="banner">{problem.value}</p>}
      {state === "refused" && (
        <Failure title="The server refuses this page.">
          <p>{problem.value}</p>
        </Failure>
      )}
    </div>
  );
}

const KEYS = [
  ["j, k, ↓, ↑", "next and previous session"],
  ["Enter", "open the session"],
  ["/", "search"],
  ["Esc", "leave the search, or a session"],
  ["1 2 3 4", "sessions, fleet, policy, history"],
  ["t, c, f, a, p", "in a session: terminal, commands, files, artifacts, checkpoints"],
  ["?", "this help"],
];

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <div class="dialog-buttons">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
