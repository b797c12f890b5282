/** Commands whose output is read on this page. */
import { type Signal, signal } from "@preact/signals";
import { type Exit, run, watch } from "./run";

/** Characters that stay on the page: a browser is slow with more. */
const SHOWN = 200_000;
/** Pieces are put together for this long before the page is drawn again. */
const DRAW_MS = 80;

export interface Output {
  text: string;
  /** How many characters of the beginning are gone from here. */
  cut: number;
  exit?: Exit;
  lost: boolean;
  failed?: string;
}

export class Followed {
  readonly output: Signal<Output> = signal({ text: "", cut: 0, lost: false });
  private readonly stopping = new AbortController();
  private pieces: string[] = [];
  private timer = 0;

  get signal(): AbortSignal {
    return this.stopping.signal;
  }

  stop(): void {
    this.stopping.abort();
    clearTimeout(this.timer);
  }

  readonly onOutput = (text: string): void => {
    this.pieces.push(text);
    this.timer ||= window.setTimeout(() => this.flush(), DRAW_MS);
  };
  readonly onExit = (exit: Exit): void => (this.flush(), this.change({ exit, lost: false }));
  readonly onLink = (lost: boolean): void => this.change({ lost });

  change(fields: Partial<Output>): void {
    this.output.value = { ...this.output.value, ...fields };
  }

  private flush(): void {
    clearTimeout(this.timer);
    this.timer = 0;
    const { text, cut } = this.output.value;
    const whole = text + this.pieces.join("");
    const more = Math.max(0, whole.length - SHOWN);
    this.pieces = [];
    this.change({ text: whole.slice(more), cut: cut + more });
  }
}

/** Those that were started here. They are followed to their end, whatever page is shown: the server
 * stores how a command ended for the caller that waits for it. */
const started = new Map<string, Followed>();

/** Run a command; its id, once it has one. Raises ApiError where it is refused. */
export function start(session_id: string, command: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const followed = new Followed();
    const onStart = (command_id: string) => {
      started.set(command_id, followed);
      resolve(command_id);
    };
    const { onOutput, onExit, onLink } = followed;
    run({ session_id, command, timeout: 3600 }, { onStart, onOutput, onExit, onLink }, followed.signal).catch((error: Error) => {
      followed.change({ failed: error.message });
      reject(error);
    });
  });
}

/** The output of a command, and what to call when nobody looks at it any more. */
export function follow(session_id: string, command_id: string): [Followed, () => void] {
  const known = started.get(command_id);
  if (known) return [known, () => undefined];
  const followed = new Followed();
  watch(session_id, command_id, followed, followed.signal).catch((error: Error) => followed.change({ failed: error.message }));
  return [followed, () => followed.stop()];
}
