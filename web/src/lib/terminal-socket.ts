/** One terminal over a WebSocket. After a break it goes on from where it was. */
import { signal } from "@preact/signals";
import { address, socketProtocols } from "./api";
import { Backoff } from "./backoff";

export type Link = "connecting" | "open" | "lost" | "ended" | "refused";

/** More than this, and xterm.js cannot keep up: stop reading until it has. */
const MOST_UNSHOWN = 4 << 20;
const ERROR_CODE = 4000;

interface Wanted {
  session_id: string;
  /** Of a terminal that is there; without, a new one is made. */
  command_id?: string;
  /** What that one has shown so far. */
  shown_bytes?: number;
  rows: number;
  cols: number;
}

interface Screen {
  /** Calls done when the data was shown. */
  show(data: Uint8Array | string, done: () => void): void;
  started(command_id: string): void;
}

export class TerminalSocket {
  readonly link = signal<Link>("connecting");
  readonly message = signal("");
  private socket: WebSocket | null = null;
  private timer = 0;
  private offset = 0;
  private unshown = 0;
  private waits = false;
  private closed = false;
  private size: { rows: number; cols: number };
  private command_id?: string;
  private readonly idempotency_key = crypto.randomUUID?.() ?? `${Math.random()}`;
  private readonly backoff = new Backoff();
  /** Up to here it is a replay: what programs asked the terminal then was answered then. */
  private readonly replay_bytes: number;
  private shown_offset = 0;

  constructor(
    private readonly wanted: Wanted,
    private readonly screen: Screen,
  ) {
    this.command_id = wanted.command_id;
    this.replay_bytes = wanted.shown_bytes ?? 0;
    this.size = { rows: wanted.rows, cols: wanted.cols };
    this.connect();
  }

  /** Keys, and the answers of the terminal itself. False if they cannot be sent now. */
  type(data: string): boolean {
    if (this.link.value !== "open" || this.shown_offset < this.replay_bytes) return false;
    this.socket?.send(new TextEncoder().encode(data));
    return true;
  }

  resize(rows: number, cols: number): void {
    this.size = { rows, cols };
    if (this.link.value === "open") this.socket?.send(JSON.stringify({ type: "resize", rows, cols }));
  }

  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
    this.socket?.close();
  }

  private connect(): void {
    this.waits = false;
    const known = this.command_id
      ? { command_id: this.command_id, offset: this.offset }
      : { idempotency_key: this.idempotency_key };
    const url = address("terminal", { session_id: this.wanted.session_id, ...known, ...this.size });
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url, socketProtocols());
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.told(JSON.parse(data)) : this.shows(data));
    socket.onclose = ({ code }) => this.lost(code);
    this.socket = socket;
  }

  private shows(data: ArrayBuffer): void {
    this.offset += data.byteLength;
    this.unshown += data.byteLength;
    const reached = this.offset;
    this.screen.show(new Uint8Array(data), () => {
      this.unshown -= data.byteLength;
      this.shown_offset = Math.max(this.shown_offset, reached);
      if (this.waits && this.unshown === 0 && !this.closed) this.connect();
    });
    if (this.unshown > MOST_UNSHOWN) {
      this.waits = true;
      this.socket?.close();
    }
  }

  private told(control: { type: string; [field: string]: any }): void {
    switch (control.type) {
      case "start":
        this.command_id = control.command_id as string;
        this.offset = control.offset;
        this.backoff.reset();
        this.link.value = "open";
        this.screen.started(this.command_id);
        break;
      case "offset":
        this.offset = control.offset;
        break;
      case "gap":
        this.offset = control.next_offset;
        this.screen.show(`\r\n\x1b[2m[${control.next_offset - control.offset} bytes are no longer kept]\x1b[0m\r\n`, () => {
          this.shown_offset = Math.max(this.shown_offset, control.next_offset);
        });
        break;
      case "exit":
        this.link.value = "ended";
        this.message.value = `The terminal has ended with exit code ${control.exit_code}.`;
        break;
      case "error":
        this.message.value = control.error.message;
    }
  }

  private lost(code: number): void {
    if (this.closed || this.waits || this.link.value === "ended") return;
    const status = code - ERROR_CODE;
    if (status >= 400 && status < 500 && status !== 429) {
      this.link.value = "refused";
      return;
    }
    this.link.value = "lost";
    this.timer = window.setTimeout(() => this.connect(), this.backoff.nextMs());
  }
}
