/** Memory, CPU and disk of sessions, asked for one after the other and only while they are seen. */
import { signal } from "@preact/signals";
import { ApiError, get } from "./api";
import { pause } from "./backoff";
import type { SessionInfo } from "./types";

export interface Sample {
  at: number;
  memory: number | null;
  disk: number | null;
  pids: number;
  /** Of one core; null for the first sample. */
  cpu: number | null;
  cpu_s: number;
}

const KEPT = 120;
const SESSIONS = 200;
/** Between two questions: 2 a second keep the server far below 1 % of a core. */
const EVERY_MS = 500;
const FIRST_MS = 60;

export const samples = signal<ReadonlyMap<string, Sample[]>>(new Map());

export function latest(session_id: string): Sample | undefined {
  return samples.value.get(session_id)?.at(-1);
}

/** Keep measuring the sessions that `visible` names, until the signal. */
export async function measure(visible: () => string[], stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    const next = document.hidden ? undefined : longestAgo(visible());
    const known = next !== undefined && samples.value.has(next);
    if (next !== undefined) await sample(next, stop);
    await pause(next === undefined || known ? EVERY_MS : FIRST_MS, stop);
  }
}

export function record(info: SessionInfo): void {
  const at = performance.now() / 1000;
  const before = samples.value.get(info.session_id) ?? [];
  const last = before.at(-1);
  const { cpu_s, memory_bytes, disk_bytes, pids } = info.usage;
  const cpu = last && at > last.at ? Math.max(0, cpu_s - last.cpu_s) / (at - last.at) : null;
  const next = new Map(samples.value);
  next.delete(info.session_id);
  next.set(info.session_id, [
    ...before.slice(-KEPT + 1),
    { at, memory: memory_bytes, disk: disk_bytes, pids, cpu, cpu_s },
  ]);
  for (const id of next.keys()) {
    if (next.size <= SESSIONS) break;
    next.delete(id);
  }
  samples.value = next;
}

async function sample(session_id: string, stop: AbortSignal): Promise<void> {
  try {
    record(await get<SessionInfo>("session", { session_id }, stop));
  } catch (error) {
    // It has ended, or the server is away: the list says so.
    if (!(error instanceof ApiError) && !stop.aborted) throw error;
  }
}

function longestAgo(ids: string[]): string | undefined {
  let found: string | undefined;
  let oldest = Infinity;
  for (const id of ids) {
    const at = latest(id)?.at ?? 0;
    if (at < oldest) [found, oldest] = [id, at];
  }
  return found;
}
