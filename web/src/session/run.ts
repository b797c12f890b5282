/** Runs commands, and follows those that run, as events. After a break it goes on from its offset. */
import { ApiError, send } from "../lib/api";
import { Backoff, pause } from "../lib/backoff";
import { serverEvents } from "../lib/events";

export interface Exit {
  exit_code: number;
  duration_ms: number;
  timed_out: boolean;
  output_bytes: number;
  reason: string | null;
  hint: string | null;
}

interface Watching {
  onStart?: (command_id: string) => void;
  onOutput: (text: string) => void;
  onExit: (exit: Exit) => void;
  onLink: (lost: boolean) => void;
}

interface Start {
  session_id: string;
  command: string;
  timeout?: number;
}

const EVENTS = { Accept: "text/event-stream" };

/** Run a command, and follow it to its end. Raises ApiError where it is refused. */
export async function run(start: Start, watching: Watching, stop: AbortSignal): Promise<void> {
  const json = { ...start, idempotency_key: crypto.randomUUID?.() ?? `${Math.random()}` };
  await follow({ session_id: start.session_id, json }, watching, stop);
}

/** Follow a command that was started before. */
export async function watch(session_id: string, command_id: string, watching: Watching, stop: AbortSignal): Promise<void> {
  await follow({ session_id, command_id }, watching, stop);
}

interface Followed {
  session_id: string;
  command_id?: string;
  json?: object;
}

async function follow(followed: Followed, watching: Watching, stop: AbortSignal): Promise<void> {
  const backoff = new Backoff();
  let { command_id } = followed;
  let offset = 0;
  while (!stop.aborted) {
    try {
      const answer = await (command_id
        ? send("POST", "execute", { query: { command_id, offset }, json: { session_id: followed.session_id }, headers: EVENTS, signal: stop })
        : send("POST", "execute", { json: followed.json, headers: EVENTS, signal: stop }));
      watching.onLink(false);
      for await (const { event, data } of serverEvents(answer)) {
        backoff.reset();
        const told = JSON.parse(data);
        if (event === "start") watching.onStart?.((command_id = told.command_id as string));
        else if (event === "exit") return watching.onExit(told);
        else if (event === "error") throw new ApiError(503, told.code, told.message);
        else {
          offset = told.next_offset;
          watching.onOutput(event === "gap" ? `\n[${told.next_offset - told.offset} bytes are no longer kept]\n` : told.data);
        }
      }
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof ApiError && !error.passing) throw error;
    }
    if (stop.aborted) return;
    watching.onLink(true);
    await pause(backoff.nextMs(), stop);
  }
}
