/** What a session uses, over the time the page is open. */
import { bytes, percent } from "../lib/format";
import type { SessionInfo } from "../lib/types";
import { samples } from "../lib/usage";
import { Sparkline } from "../parts/sparkline";

export function UsageStrip({ info }: { info: SessionInfo }) {
  const history = samples.value.get(info.session_id) ?? [];
  const last = history.at(-1);
  const { limits } = info;
  const graphs = [
    { name: "Memory", now: bytes(last?.memory), of: bytes(limits.memory_bytes), values: history.map((each) => each.memory), most: limits.memory_bytes / 4 },
    { name: "CPU", now: percent(last?.cpu), of: percent(limits.cpus), values: history.map((each) => each.cpu), most: limits.cpus / 4 },
    { name: "Disk", now: bytes(last?.disk), of: bytes(limits.disk_bytes), values: history.map((each) => each.disk), most: limits.disk_bytes / 16 },
    { name: "Processes", now: String(last?.pids ?? "–"), of: String(limits.pids), values: history.map((each) => each.pids), most: 16 },
  ];
  return (
    <div class="usage" role="group" aria-label="Usage">
      {graphs.map(({ name, now, of, values, most }) => (
        <figure key={name}>
          <figcaption>
            {name} <strong>{now}</strong> <span class="muted">of {of}</span>
          </figcaption>
          <Sparkline values={values} most={most} label={`${name}: ${now} of ${of}`} />
        </figure>
      ))}
    </div>
  );
}
