/** The live list of sessions: sent once, then what changes. */
import { computed, signal } from "@preact/signals";
import { ApiError, send } from "./api";
import { Backoff, pause } from "./backoff";
import { serverEvents } from "./events";
import type { Row } from "./types";

export type Connection = "connecting" | "live" | "lost" | "refused";

export const connection = signal<Connection>("connecting");
export const problem = signal("");
export const unreachable = signal<string[]>([]);
/** Whether somebody looks. A browser has six connections to a server for all of its tabs, so those in
 * the background keep none for the list. */
export const seen = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (seen.value = !document.hidden));
// A page that was left may live on, for the way back.
addEventListener("pagehide", () => (seen.value = false));
addEventListener("pageshow", () => (seen.value = !document.hidden));
const rows = signal<ReadonlyMap<string, Row>>(new Map());
export const sessions = computed(() => [...rows.value.values()]);
/** Ticks every second, for what counts seconds. */
export const now = signal(Date.now() / 1000);
let ahead = 0;
setInterval(() => (now.value = Date.now() / 1000 + ahead), 1000);

interface Message {
  now: number;
  sessions?: Row[];
  changed?: Row[];
  gone?: string[];
  unreachable: string[];
}

/** Follow the list until the signal. A lost connection is opened again. */
export async function followSessions(stop: AbortSignal): Promise<void> {
  const backoff = new Backoff();
  connection.value = "connecting";
  while (!stop.aborted) {
    try {
      const answer = await send("GET", "console/sessions", { signal: stop });
      for await (const { event, data } of serverEvents(answer)) {
        backoff.reset();
        if (event === "error") {
          problem.value = JSON.parse(data).message;
          continue;
        }
        apply(JSON.parse(data) as Message);
        problem.value = "";
        connection.value = "live";
      }
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof ApiError && !error.passing) {
        problem.value = error.message;
        connection.value = "refused";
        if (error.status === 401) return;
      }
    }
    if (stop.aborted) return;
    if (connection.value !== "refused") connection.value = "lost";
    await pause(backoff.nextMs(), stop);
  }
}

function apply(message: Message): void {
  ahead = message.now - Date.now() / 1000;
  now.value = message.now;
  unreachable.value = message.unreachable;
  const next = message.sessions ? new Map<string, Row>() : new Map(rows.value);
  for (const row of message.sessions ?? message.changed ?? []) next.set(row.session_id, row);
  for (const id of message.gone ?? []) next.delete(id);
  rows.value = next;
}
