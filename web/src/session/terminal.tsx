/** A terminal of the session: a new one, or one that is there and that others may look at too. */
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "preact/hooks";
import { dark } from "../lib/theme";
import { link, replace } from "../lib/router";
import { TerminalSocket } from "../lib/terminal-socket";
import type { CommandInfo } from "../lib/types";
import { Empty, Loading } from "../parts/states";
import { useCommands } from "./list";

interface Props {
  session_id: string;
  command_id?: string;
}

const NEW = "new";

export function TerminalPanel({ session_id, command_id }: Props) {
  const { commands } = useCommands(session_id);
  const [opened, setOpened] = useState({ count: 0, command_id: NEW });
  if (!commands) return <Loading what="terminals" />;
  const terminals = commands.filter((each) => each.pty && (each.running || each.command_id === command_id));
  const chosen = command_id ?? terminals.findLast((each) => each.running)?.command_id;
  const open = () => {
    setOpened({ count: opened.count + 1, command_id: NEW });
    replace("session", session_id, "terminal", NEW);
  };
  const started = (id: string) => {
    setOpened({ ...opened, command_id: id });
    replace("session", session_id, "terminal", id);
  };
  return (
    <div class="terminal-panel">
      <div class="bar">
        <TerminalList session_id={session_id} terminals={terminals} chosen={chosen} />
        <button type="button" class={chosen ? "" : "primary"} onClick={open}>
          New terminal
        </button>
      </div>
      {chosen ? (
        <TerminalView
          // The view of a new terminal stays the same when the server names it.
          key={chosen === opened.command_id ? opened.count : chosen}
          session_id={session_id}
          command_id={chosen}
          info={commands.find((each) => each.command_id === chosen)}
          onStart={started}
        />
      ) : (
        <Empty title="No terminal is open in this session.">
          <p class="muted">A new one is a bash in the state that the last command left.</p>
        </Empty>
      )}
    </div>
  );
}

interface ListProps {
  session_id: string;
  terminals: CommandInfo[];
  chosen: string | undefined;
}

function TerminalList({ session_id, terminals, chosen }: ListProps) {
  return (
    <nav class="chips" aria-label="Terminals">
      {terminals.map((each, at) => (
        <a key={each.command_id} class="chip" href={link("session", session_id, "terminal", each.command_id)} aria-current={each.command_id === chosen ? "true" : undefined}>
          {each.command || "bash"} <span class="muted">{each.running ? at + 1 : "ended"}</span>
        </a>
      ))}
    </nav>
  );
}

interface ViewProps {
  session_id: string;
  /** `new`, until the server has named it. */
  command_id: string;
  info?: CommandInfo;
  onStart: (command_id: string) => void;
}

function TerminalView({ session_id, command_id, info, onStart }: ViewProps) {
  const place = useRef<HTMLDivElement>(null);
  const [socket, setSocket] = useState<TerminalSocket | null>(null);
  const theme = dark.value;
  const terminal = useRef<Terminal | null>(null);
  const [aloud, setAloud] = useState(false);

  useEffect(() => {
    const term = new Terminal({
      fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
      fontSize: 13,
      scrollback: 10_000,
      minimumContrastRatio: 4.5,
      // What a box prints does not become a link.
      linkHandler: { activate: () => undefined, allowNonHttpProtocols: false },
      theme: colours(theme),
    });
    const fit = new FitAddon();
    term.loadAddon(fit);
    term.open(place.current!);
    fit.fit();
    const known = command_id === NEW ? {} : { command_id, shown_bytes: info?.output_bytes };
    const made = new TerminalSocket(
      { session_id, ...known, rows: term.rows, cols: term.cols },
      {
        show: (data, done) => term.write(data, done),
        started: (id) => command_id === NEW && onStart(id),
      },
    );
    term.onData((data) => made.type(data));
    term.onResize(({ rows, cols }) => made.resize(rows, cols));
    // Whoever types decides about the size that all viewers share.
    term.textarea?.addEventListener("focus", () => made.resize(term.rows, term.cols));
    const observer = new ResizeObserver(() => fit.fit());
    observer.observe(place.current!);
    term.focus();
    terminal.current = term;
    setSocket(made);
    return () => (observer.disconnect(), made.close(), term.dispose());
  }, []);

  useEffect(() => {
    if (terminal.current) terminal.current.options.theme = colours(theme);
  }, [theme]);

  useEffect(() => {
    if (terminal.current) terminal.current.options.screenReaderMode = aloud;
  }, [aloud]);

  return (
    <div class="terminal-frame">
      <button type="button" class="terminal-aloud" aria-pressed={aloud} onClick={() => setAloud(!aloud)}>
        Read aloud with a screen reader
      </button>
      <div class="terminal-place" ref={place} role="group" aria-label="Terminal" />
      <LinkState socket={socket} />
    </div>
  );
}

function LinkState({ socket }: { socket: TerminalSocket | null }) {
  const link = socket?.link.value ?? "connecting";
  const texts = {
    connecting: "Connecting…",
    open: "",
    lost: "The connection is lost. It is tried again, and the terminal goes on where it was.",
    ended: socket?.message.value ?? "",
    refused: socket?.message.value || "The server refuses this terminal.",
  };
  return (
    <p class={`terminal-state terminal-${link}`} role="status" data-link={link}>
      {texts[link]}
    </p>
  );
}

function colours(isDark: boolean) {
  return isDark
    ? { background: "#0f1513", foreground: "#dfe7e3", cursor: "#7fd1b9", selectionBackground: "#2f6f5e88" }
    : {
        background: "#fbfcfb", foreground: "#1d2622", cursor: "#2f6f5e", selectionBackground: "#2f6f5e44",
        black: "#1d2622", red: "#b3261e", green: "#1f7a3d", yellow: "#8a6100", blue: "#1f57b0", magenta: "#8a2f8f", cyan: "#0f6f78", white: "#56625c",
        brightBlack: "#6b7771", brightRed: "#c8372e", brightGreen: "#268a48", brightYellow: "#9a6d00", brightBlue: "#2a66c8", brightMagenta: "#9c3da1", brightCyan: "#157f89", brightWhite: "#2b3631",
      };
}
