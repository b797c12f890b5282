/** Paste a command, see what the policy says of it and of each of its parts. */
import { useState } from "preact/hooks";
import { plainOutput } from "../lib/format";
import { sessions } from "../lib/live";
import type { SimpleCommand, Verdict } from "../lib/types";
import { useVerdict } from "../session/verdict";
import { Empty, Failure } from "../parts/states";

/** A verdict needs a thread to judge for. No session is made for it. */
const NOBODY = { thread_id: "console-policy" };

export function PolicyPage() {
  const [command, setCommand] = useState("");
  const [session_id, setSession] = useState("");
  const verdict = useVerdict(session_id ? { session_id } : NOBODY, command);
  return (
    <section class="page" aria-label="Policy">
      <div class="bar">
        <h1>Policy</h1>
      </div>
      <label for="judged">Command, which is judged and not run</label>
      <textarea id="judged" rows={5} spellcheck={false} value={command} onInput={(event) => setCommand(event.currentTarget.value)} placeholder="curl https://example.com/install.sh | bash" />
      <label for="as">As in</label>
      <select id="as" value={session_id} onChange={(event) => setSession(event.currentTarget.value)}>
        <option value="">a new session</option>
        {sessions.value.slice(0, 200).map((row) => (
          <option key={row.session_id} value={row.session_id}>
            {row.thread_id}
          </option>
        ))}
      </select>
      <div role="status">
        {!command.trim() && <Empty title="Nothing to judge yet." />}
        {command.trim() && verdict && ("problem" in verdict ? <Failure title={verdict.problem} /> : <Judged verdict={verdict} command={command} />)}
      </div>
    </section>
  );
}

function Judged({ verdict, command }: { verdict: Verdict; command: string }) {
  return (
    <>
      <h2>
        <span class={`pill ${verdict.allowed ? "pill-ok" : "pill-bad"}`}>{verdict.allowed ? "allowed" : "rejected"}</span>{" "}
        <span class="muted">
          policy {verdict.policy}, {verdict.mode}
          {verdict.rule && `, rule ${verdict.rule}`}
        </span>
      </h2>
      {verdict.reason && <p>{plainOutput(verdict.reason)}</p>}
      {verdict.alternative && <p>Instead: {plainOutput(verdict.alternative)}</p>}
      {verdict.command && <Marked command={command} part={verdict.command} />}
      {verdict.doubts.length > 0 && (
        <>
          <h2>Not known before running</h2>
          <ul>
            {verdict.doubts.map((doubt, at) => (
              <li key={at}>{plainOutput(doubt)}</li>
            ))}
          </ul>
        </>
      )}
      <h2>Its parts</h2>
      <ol class="parts">
        {verdict.commands.map((part, at) => (
          <li key={at} class={isSame(part, verdict.command) ? "part-bad" : ""}>
            <code>{plainOutput(part.via.length ? words(part) : part.text)}</code>
            {part.via.length > 0 && <span class="muted"> run by {plainOutput(part.via.join(", "))}</span>}
          </li>
        ))}
      </ol>
    </>
  );
}

/** The command with the part that is rejected marked in it. The server counts code points. */
function Marked({ command, part }: { command: string; part: SimpleCommand }) {
  const letters = [...command];
  const text = (from: number, to?: number) => plainOutput(letters.slice(from, to).join(""));
  return (
    <pre class="marked">
      {text(0, part.start)}
      <mark>{text(part.start, part.end)}</mark>
      {text(part.end)}
    </pre>
  );
}

/** Its words, as far as they are known: the text of one that others run is that of the outermost. */
function words(part: SimpleCommand): string {
  return part.argv.map((word) => word ?? "…").join(" ");
}

function isSame(part: SimpleCommand, other: SimpleCommand | null): boolean {
  return other !== null && part.start === other.start && part.end === other.end && words(part) === words(other);
}
