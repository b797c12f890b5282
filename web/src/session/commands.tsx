/** The commands of a session: run one, watch one, kill one. */
import { useState } from "preact/hooks";
import { ago, bytes, duration, plainOutput } from "../lib/format";
import { post } from "../lib/api";
import { replace } from "../lib/router";
import type { CommandInfo } from "../lib/types";
import { Empty, Failure, Loading } from "../parts/states";
import { start } from "./followed";
import { type Known, type Listed, remember, useCommands } from "./list";
import { CommandOutput } from "./output";
import { useVerdict, VerdictLine } from "./verdict";

interface Props {
  session_id: string;
  command_id?: string;
}

export function CommandsPanel({ session_id, command_id }: Props) {
  const listed = useCommands(session_id);
  const choose = (id: string) => replace("session", session_id, "commands", id);
  const chosen = listed.commands?.find((each) => each.command_id === command_id);
  return (
    <div class="commands-panel">
      <RunForm session_id={session_id} onStart={choose} />
      <div class="split">
        <CommandList listed={listed} chosen={command_id} onChoose={choose} />
        <div class="split-main">
          {command_id ? (
            <CommandView key={command_id} session_id={session_id} command_id={command_id} info={chosen} known={listed.known.get(command_id)} />
          ) : (
            <Empty title="No command is chosen.">
              <p class="muted">Choose one to see its output as it comes, or run one.</p>
            </Empty>
          )}
        </div>
      </div>
    </div>
  );
}

function RunForm({ session_id, onStart }: { session_id: string; onStart: (id: string) => void }) {
  const [command, setCommand] = useState("");
  const [failed, setFailed] = useState("");
  const verdict = useVerdict({ session_id }, command);
  const submit = async (event: Event) => {
    event.preventDefault();
    const text = command;
    if (!text.trim()) return;
    setFailed("");
    try {
      const command_id = await start(session_id, text);
      remember(command_id, { command: text });
      setCommand("");
      onStart(command_id);
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  return (
    <form class="run" onSubmit={submit}>
      <label class="sr-only" for="command">
        Command to run
      </label>
      <textarea
        id="command"
        rows={Math.min(6, command.split("\n").length)}
        placeholder="Run a command: Enter runs it, Shift+Enter is a new line"
        spellcheck={false}
        value={command}
        onInput={(event) => (setCommand(event.currentTarget.value), setFailed(""))}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey) void submit(event);
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      <button type="submit" class="primary" disabled={!command.trim()}>
        Run
      </button>
      <div class="run-about" role="status">
        {failed ? <p class="error">{failed}</p> : command.trim() && verdict && <VerdictLine verdict={verdict} />}
      </div>
    </form>
  );
}

interface ListProps {
  listed: Listed;
  chosen?: string;
  onChoose: (command_id: string) => void;
}

function CommandList({ listed, chosen, onChoose }: ListProps) {
  const { commands, known, problem, truncated } = listed;
  if (!commands) return problem ? <Failure title={problem} /> : <Loading what="commands" />;
  if (commands.length === 0) return <Empty title="No command has run yet." />;
  return (
    <div class="split-side">
      <ul class="list" aria-label="Commands, newest first">
        {commands.toReversed().map((each) => (
          <li key={each.command_id}>
            <button type="button" class="list-item" aria-current={each.command_id === chosen ? "true" : undefined} onClick={() => onChoose(each.command_id)}>
              <CommandState info={each} />
              <span class="command-text">{textOf(each, known.get(each.command_id))}</span>
              <span class="muted command-when">{ago(each.age_s)} ago</span>
            </button>
          </li>
        ))}
      </ul>
      {truncated && <p class="muted">Older ones are in the history.</p>}
    </div>
  );
}

export function textOf(info: CommandInfo, known?: Known): string {
  const text = known?.command ?? info.command;
  if (text) return plainOutput(text);
  if (info.pty) return "bash, in a terminal";
  return info.is_code ? "code" : "a command of another caller";
}

function CommandState({ info }: { info: CommandInfo }) {
  if (info.running) return <span class="pill pill-busy">running</span>;
  return <span class={`pill ${info.exit_code === 0 ? "pill-ok" : "pill-bad"}`}>exit {info.exit_code}</span>;
}

interface ViewProps {
  session_id: string;
  command_id: string;
  info?: CommandInfo;
  known?: Known;
}

function CommandView({ session_id, command_id, info, known }: ViewProps) {
  const [failed, setFailed] = useState("");
  const [killed, setKilled] = useState(false);
  const kill = async () => {
    try {
      await post("command/signal", { session_id, command_id, signal: "KILL" });
      setKilled(true);
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  return (
    <article class="command" aria-label="Command">
      <div class="bar">
        <code class="command-head">{info ? textOf(info, known) : (known?.command ?? "")}</code>
        {info?.running && !killed && (
          <button type="button" class="danger" onClick={kill}>
            Kill
          </button>
        )}
      </div>
      <p class="muted command-facts" role="status">
        {info && <CommandState info={info} />}
        {known?.duration_ms !== undefined && known.duration_ms > 0 && <span>took {duration(known.duration_ms / 1000)}</span>}
        {info && <span>{bytes(info.output_bytes)} of output</span>}
        {failed && <span class="error">{failed}</span>}
      </p>
      <CommandOutput session_id={session_id} command_id={command_id} />
    </article>
  );
}
