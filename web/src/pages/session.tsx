/** One session: its terminal, commands, files, artifacts and checkpoints, and what it uses. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post } from "../lib/api";
import { pause } from "../lib/backoff";
import { ago, plainName } from "../lib/format";
import { useShortcuts } from "../lib/keys";
import { now } from "../lib/live";
import { go, link, replace } from "../lib/router";
import type { SessionInfo } from "../lib/types";
import { record } from "../lib/usage";
import { Question } from "../parts/dialog";
import { Empty, Failure, Loading } from "../parts/states";
import { ArtifactsPanel } from "../session/artifacts";
import { CheckpointsPanel } from "../session/checkpoints";
import { CommandsPanel } from "../session/commands";
import { FilesPanel } from "../session/files";
import { TerminalPanel } from "../session/terminal";
import { UsageStrip } from "../session/usage";

const EVERY_MS = 3000;
const TABS = [
  ["terminal", "Terminal"],
  ["commands", "Commands"],
  ["files", "Files"],
  ["artifacts", "Artifacts"],
  ["checkpoints", "Checkpoints"],
] as const;

interface Props {
  session_id: string;
  /** The tab, and what is open in it. */
  view: string[];
}

export function SessionPage({ session_id, view }: Props) {
  const { info, error } = useSession(session_id);
  const [tab = "terminal", ...open] = view;
  useShortcuts({
    t: () => go("session", session_id, "terminal"),
    c: () => go("session", session_id, "commands"),
    f: () => go("session", session_id, "files"),
    a: () => go("session", session_id, "artifacts"),
    p: () => go("session", session_id, "checkpoints"),
    Escape: () => go("sessions"),
  });
  if (error && error.status !== 0 && !error.passing) return <Ended session_id={session_id} error={error} />;
  if (!info) return <Loading what="the session" />;
  return (
    <section class="page page-session" aria-label={`Session of thread ${info.thread_id}`}>
      <SessionHead info={info} />
      <UsageStrip info={info} />
      <Tabs session_id={session_id} current={tab} />
      <div class="panel" role="tabpanel" id="panel" aria-labelledby={`tab-${tab}`}>
        {tab === "terminal" && <TerminalPanel session_id={session_id} command_id={open[0]} />}
        {tab === "commands" && <CommandsPanel session_id={session_id} command_id={open[0]} />}
        {tab === "files" && <FilesPanel info={info} path={open.length ? `/${open.join("/")}` : "/workspace"} />}
        {tab === "artifacts" && <ArtifactsPanel session_id={session_id} />}
        {tab === "checkpoints" && <CheckpointsPanel info={info} />}
      </div>
    </section>
  );
}

/** The session as it is now, asked for again and again: that does not count as a use of it. */
function useSession(session_id: string) {
  const [state, setState] = useState<{ info?: SessionInfo; error?: ApiError }>({});
  useEffect(() => {
    const stop = new AbortController();
    const follow = async () => {
      while (!stop.signal.aborted) {
        try {
          const info = await get<SessionInfo>("session", { session_id }, stop.signal);
          record(info);
          setState({ info });
        } catch (error) {
          if (stop.signal.aborted || !(error instanceof ApiError)) return;
          setState(({ info }) => ({ info, error: error as ApiError }));
          if (!error.passing) return;
        }
        await pause(EVERY_MS, stop.signal);
      }
    };
    void follow();
    return () => stop.abort();
  }, [session_id]);
  return state;
}

function SessionHead({ info }: { info: SessionInfo }) {
  const created = Date.parse(info.created_at) / 1000;
  const facts: [string, string][] = [
    ["Environment", info.environment ? plainName(info.environment) : "default"],
    ["Runtime", info.runtime],
    ["Worker", info.worker],
    ["Age", ago(now.value - created)],
    ["Idle", info.state === "busy" ? "–" : ago(info.idle_s)],
    ["Commands", String(info.commands)],
    ["Network", info.limits.network],
  ];
  return (
    <div class="session-head">
      <div class="bar">
        <a class="back" href={link("sessions")} aria-label="Back to the sessions">
          ←
        </a>
        <h1 title={info.session_id}>{info.thread_id}</h1>
        <span class={`pill pill-${info.state}`}>{info.state}</span>
        {info.generation > 1 && <span class="tag">#{info.generation}</span>}
        <SessionActions info={info} />
      </div>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd title={value}>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

/** What can be done with a whole session. Further operations of the server get their button here. */
function SessionActions({ info }: { info: SessionInfo }) {
  const [asking, setAsking] = useState(false);
  const [failed, setFailed] = useState("");
  const end = async () => {
    setAsking(false);
    try {
      await post("cleanup", { session_id: info.session_id });
      go("sessions");
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  return (
    <div class="actions">
      {failed && (
        <span class="error" role="alert">
          {failed}
        </span>
      )}
      <a class="button quiet" href={link("history", info.session_id)}>
        History
      </a>
      <button type="button" class="danger" onClick={() => setAsking(true)}>
        End
      </button>
      {asking && (
        <Question title="End this session?" action="End it" onConfirm={end} onClose={() => setAsking(false)}>
          <p>
            The processes and files of <strong>{info.thread_id}</strong> are gone then. Its artifacts and its history stay.
          </p>
        </Question>
      )}
    </div>
  );
}

function Tabs({ session_id, current }: { session_id: string; current: string }) {
  const turn = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    const at = TABS.findIndex(([name]) => name === current);
    const next = TABS[(at + by + TABS.length) % TABS.length]![0];
    replace("session", session_id, next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label="Parts of the session" onKeyDown={turn}>
      {TABS.map(([name, title]) => (
        <button
          key={name}
          id={`tab-${name}`}
          type="button"
          role="tab"
          aria-selected={name === current}
          aria-controls="panel"
          tabIndex={name === current ? 0 : -1}
          onClick={() => go("session", session_id, name)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}

function Ended({ session_id, error }: { session_id: string; error: ApiError }) {
  if (error.status !== 404 && error.status !== 410) {
    return (
      <Failure title="This session cannot be shown.">
        <p>{error.message}</p>
      </Failure>
    );
  }
  return (
    <Empty title={error.status === 410 ? "This session is lost." : "This session has ended."}>
      <p>
        <a href={link("history", session_id)}>What is remembered of it</a> · <a href={link("sessions")}>To the sessions</a>
      </p>
    </Empty>
  );
}
