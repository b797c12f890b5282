/** Sessions there were, with their commands: as far back as the server remembers. */
import { useEffect, useState } from "preact/hooks";
import { get } from "../lib/api";
import { count, dateTime, duration, plainName, plainOutput } from "../lib/format";
import { link } from "../lib/router";
import type { StoredCommand, StoredSession, StoredSessionDetail } from "../lib/types";
import { ArtifactList } from "../session/artifacts";
import { Empty, Failure, Loading } from "../parts/states";

const PAGE = 50;
const TYPING_MS = 250;
const STATES = ["live", "cleaned", "expired", "lost"];

export function HistoryPage({ session_id }: { session_id?: string }) {
  return session_id ? <StoredPage key={session_id} session_id={session_id} /> : <SearchPage />;
}

interface Found {
  sessions: StoredSession[];
  truncated: boolean;
}

function SearchPage() {
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const [found, setFound] = useState<Found | null>(null);
  const [failed, setFailed] = useState("");
  const ask = (before?: string, stop?: AbortSignal) => get<Found>("api/sessions", { text: text.trim(), state, before, limit: PAGE }, stop);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => {
      ask(undefined, stop.signal).then(
        (first) => (setFound(first), setFailed("")),
        (error: Error) => stop.signal.aborted || setFailed(error.message),
      );
    }, TYPING_MS);
    return () => (clearTimeout(timer), stop.abort());
  }, [text, state]);
  const more = async () => {
    try {
      const next = await ask(found!.sessions.at(-1)!.session_id);
      setFound({ sessions: [...found!.sessions, ...next.sessions], truncated: next.truncated });
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  return (
    <section class="page" aria-label="History">
      <div class="bar">
        <h1>History</h1>
        <input class="search" type="search" placeholder="In a command, or in a name" aria-label="Search the history" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <label class="sr-only" for="state">
          State
        </label>
        <select id="state" value={state} onChange={(event) => setState(event.currentTarget.value)}>
          <option value="">all states</option>
          {STATES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </div>
      {failed && <Failure title="The history cannot be shown."><p>{failed}</p></Failure>}
      {!failed && !found && <Loading what="the history" />}
      {found?.sessions.length === 0 && <Empty title="Nothing is remembered that matches." />}
      {found && found.sessions.length > 0 && (
        <ul class="list">
          {found.sessions.map((each) => (
            <li key={each.session_id}>
              <a class="list-item" href={link("history", each.session_id)}>
                <StatePill state={each.state} />
                <span class="file-name">
                  {each.thread_id} {each.generation > 1 && <span class="tag">#{each.generation}</span>}
                </span>
                <span class="muted">{each.environment ? plainName(each.environment) : each.provider}</span>
                <span class="muted">{count(each.commands, "command")}</span>
                <span class="muted">{dateTime(each.created_at)}</span>
              </a>
            </li>
          ))}
        </ul>
      )}
      {found?.truncated && (
        <button type="button" onClick={more}>
          Older ones
        </button>
      )}
    </section>
  );
}

function StatePill({ state }: { state: StoredSession["state"] }) {
  return <span class={`pill ${{ live: "pill-ok", cleaned: "", expired: "", lost: "pill-bad" }[state]}`}>{state}</span>;
}

function StoredPage({ session_id }: { session_id: string }) {
  const [detail, setDetail] = useState<StoredSessionDetail | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    get<StoredSessionDetail>(`api/sessions/${encodeURIComponent(session_id)}`, {}, stop.signal).then(setDetail, (error: Error) => stop.signal.aborted || setFailed(error.message));
    return () => stop.abort();
  }, [session_id]);
  if (failed) return <Failure title="This session is not remembered."><p>{failed}</p></Failure>;
  if (!detail) return <Loading what="the session" />;
  return (
    <section class="page" aria-label={`History of ${detail.thread_id}`}>
      <div class="bar">
        <a class="back" href={link("history")} aria-label="Back to the history">
          ←
        </a>
        <h1 title={detail.session_id}>{detail.thread_id}</h1>
        <StatePill state={detail.state} />
        {detail.state === "live" && <a href={link("session", detail.session_id)}>Open it</a>}
      </div>
      <p class="muted">
        {dateTime(detail.created_at)} {detail.ended_at && `to ${dateTime(detail.ended_at)}`} · {detail.provider} · {plainName(detail.worker)}
      </p>
      <h2>Commands</h2>
      {detail.log_truncated && <p class="muted">Older ones are no longer stored.</p>}
      {detail.log.length === 0 && <Empty title="None is stored." />}
      <ol class="log">
        {detail.log.map((each) => (
          <LogEntry key={each.command_id} entry={each} />
        ))}
      </ol>
      <h2>Artifacts</h2>
      <ArtifactList artifacts={detail.artifacts} />
    </section>
  );
}

function LogEntry({ entry }: { entry: StoredCommand }) {
  return (
    <li>
      <details>
        <summary>
          <span class={`pill ${entry.exit_code === 0 ? "pill-ok" : entry.exit_code === null ? "" : "pill-bad"}`}>{entry.exit_code === null ? "background" : `exit ${entry.exit_code}`}</span>
          <code class="command-text">{plainOutput(entry.command) || "bash, in a terminal"}</code>
          <span class="muted">{duration(entry.duration_ms / 1000)}</span>
          <span class="muted">{dateTime(entry.at)}</span>
        </summary>
        <pre>{plainOutput(entry.output) || "No output is stored."}</pre>
      </details>
    </li>
  );
}
