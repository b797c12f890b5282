/** The server: its workers, how full they are, and what it says of its health. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../lib/api";
import { pause } from "../lib/backoff";
import { duration, plainName } from "../lib/format";
import type { Health, WorkerHealth } from "../lib/types";
import { Failure, Loading } from "../parts/states";

const EVERY_MS = 3000;

export function FleetPage() {
  const [health, setHealth] = useState<Health | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const follow = async () => {
      while (!stop.signal.aborted) {
        try {
          setHealth(await readHealth(stop.signal));
          setFailed("");
        } catch (error) {
          if (stop.signal.aborted) return;
          setFailed((error as Error).message);
        }
        await pause(EVERY_MS, stop.signal);
      }
    };
    void follow();
    return () => stop.abort();
  }, []);
  if (!health) return failed ? <Failure title={failed} /> : <Loading what="the fleet" />;
  return (
    <section class="page" aria-label="Fleet">
      <div class="bar">
        <h1>{health.role === "coordinator" ? "Fleet" : "Server"}</h1>
        <span class={`pill ${health.status === "healthy" ? "pill-ok" : "pill-bad"}`}>{health.status}</span>
        {failed && <span class="error">{failed}</span>}
      </div>
      <dl class="facts">
        {facts(health).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Workers workers={workersOf(health)} canDrain={health.role === "coordinator"} />
      <Checks checks={health.checks} />
    </section>
  );
}

/** An unhealthy server answers 503, and tells its health all the same. */
async function readHealth(signal: AbortSignal): Promise<Health> {
  try {
    return await get<Health>("health", {}, signal);
  } catch (error) {
    if (error instanceof ApiError && "checks" in error.details) return error.details as unknown as Health;
    throw error;
  }
}

function facts(health: Health): [string, string][] {
  return [
    ["Sessions", `${health.active_sessions} of ${health.capacity}`],
    ["Boxes ready", String(health.pool_size)],
    ["Runtimes", health.providers.join(", ") || health.runtime],
    ["Name", health.worker_id],
    ["Version", health.version],
    ["Up for", duration(health.uptime_s)],
  ];
}

function workersOf(health: Health): WorkerHealth[] {
  if (health.workers?.length) return health.workers;
  const { worker_id, runtime, active_sessions: sessions, capacity, pool_size: warm, version } = health;
  return [{ worker_id, state: health.status === "unhealthy" ? "unhealthy" : "serving", runtime, sessions, capacity, warm, version }];
}

function Workers({ workers, canDrain }: { workers: WorkerHealth[]; canDrain: boolean }) {
  return (
    <>
      <h2>Workers</h2>
      <div class="cards">
        {workers.map((worker) => (
          <article key={worker.worker_id} class="card" aria-label={`Worker ${worker.worker_id}`}>
            <div class="bar">
              <strong>{plainName(worker.worker_id)}</strong>
              <span class={`pill ${worker.state === "serving" ? "pill-ok" : "pill-bad"}`}>{worker.state}</span>
            </div>
            <meter min={0} max={Math.max(worker.capacity, 1)} value={worker.sessions} aria-label={`${worker.sessions} of ${worker.capacity} sessions`} />
            <p class="muted">
              {worker.sessions} of {worker.capacity} sessions · {worker.warm} ready · {worker.runtime} · {worker.version}
            </p>
            {canDrain && worker.state === "serving" && (
              <p class="muted">
                To let it finish: <code>sandbox drain {plainName(worker.worker_id)}</code>
              </p>
            )}
          </article>
        ))}
      </div>
    </>
  );
}

function Checks({ checks }: { checks: Record<string, string> }) {
  return (
    <>
      <h2>Checks</h2>
      <ul class="list">
        {Object.entries(checks).map(([name, state]) => (
          <li key={name} class="list-item">
            <span class={`pill ${state === "ok" ? "pill-ok" : "pill-bad"}`}>{state === "ok" ? "ok" : "look"}</span>
            <span>{plainName(name)}</span>
            <span class="muted">{state === "ok" ? "" : plainName(state)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
