/** All sessions, live. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ago, bytes, percent, plainName } from "../lib/format";
import { useShortcuts } from "../lib/keys";
import { connection, now, sessions, unreachable } from "../lib/live";
import { go, link } from "../lib/router";
import type { Row } from "../lib/types";
import { measure, samples } from "../lib/usage";
import { Sparkline } from "../parts/sparkline";
import { Empty, Loading } from "../parts/states";
import { VirtualRows } from "../parts/virtual";

type Column = "thread_id" | "state" | "environment" | "worker" | "created_at" | "used_at";
const COLUMNS: [Column | null, string][] = [
  ["thread_id", "Thread"],
  ["state", "State"],
  ["environment", "Environment"],
  ["worker", "Worker"],
  ["created_at", "Age"],
  ["used_at", "Idle"],
  [null, "Memory"],
  [null, "CPU"],
  [null, "Disk"],
];
/** Newest first is what somebody looks for. */
const DOWNWARD: ReadonlySet<Column> = new Set(["created_at", "used_at"]);
const narrow = matchMedia("(max-width: 48rem)");

export function SessionsPage() {
  const [search, setSearch] = useState("");
  const [sort, setSort] = useState<{ by: Column; down: boolean }>({ by: "created_at", down: true });
  const [chosen, setChosen] = useState<string | null>(null);
  const [rowHeight, setRowHeight] = useState(narrow.matches ? 72 : 40);
  const field = useRef<HTMLInputElement>(null);
  const visible = useRef<string[]>([]);
  const all = sessions.value;
  const shown = useMemo(() => sorted(matching(all, search), sort.by, sort.down), [all, search, sort]);
  const place = shown.findIndex((row) => row.session_id === chosen);

  useEffect(() => {
    const stop = new AbortController();
    void measure(() => visible.current, stop.signal);
    const changed = () => setRowHeight(narrow.matches ? 72 : 40);
    narrow.addEventListener("change", changed);
    return () => (stop.abort(), narrow.removeEventListener("change", changed));
  }, []);

  const move = (by: number) => {
    // From where the last key led, also if the page has not been drawn since.
    setChosen((before) => {
      const from = shown.findIndex((row) => row.session_id === before);
      return shown[Math.min(Math.max(from + by, 0), shown.length - 1)]?.session_id ?? before;
    });
  };
  useShortcuts({
    "/": () => field.current?.focus(),
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    PageDown: () => move(15),
    PageUp: () => move(-15),
    Home: () => move(-shown.length),
    End: () => move(shown.length),
    Enter: () => chosen && place >= 0 && go("session", chosen),
  });
  const sortBy = (by: Column) => setSort({ by, down: sort.by === by ? !sort.down : DOWNWARD.has(by) });

  return (
    <section class="page page-sessions" aria-label="Sessions">
      <div class="bar">
        <h1>Sessions</h1>
        <span class="muted" role="status">
          {search ? `${shown.length} of ${all.length}` : all.length}
        </span>
        <input
          ref={field}
          class="search"
          type="search"
          placeholder="Search thread, worker, runtime, environment  ( / )"
          aria-label="Search sessions"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") event.currentTarget.blur();
            if (event.key === "Enter" || event.key === "ArrowDown") {
              event.preventDefault();
              event.currentTarget.blur();
              setChosen(shown[0]?.session_id ?? null);
            }
          }}
        />
      </div>
      {unreachable.value.length > 0 && <p class="banner">These workers do not answer, their sessions are missing here: {unreachable.value.map(plainName).join(", ")}</p>}
      {all.length === 0 && connection.value === "connecting" && <Loading what="sessions" />}
      {all.length === 0 && connection.value === "live" && (
        <Empty title="No session is live.">
          <p>
            One begins with the first command of a thread: <code>sandbox run --thread demo 'echo hello'</code>
          </p>
        </Empty>
      )}
      {all.length > 0 && shown.length === 0 && <Empty title="No session matches." />}
      {shown.length > 0 && (
        <div class="table" role="table" aria-label="Live sessions" aria-rowcount={shown.length + 1}>
          <div class="row row-head" role="row" aria-rowindex={1}>
            {COLUMNS.map(([by, title]) => (
              <span key={title} role="columnheader" class={`cell cell-${title.toLowerCase()}`} aria-sort={by !== sort.by ? undefined : sort.down ? "descending" : "ascending"}>
                {by ? (
                  <button type="button" class="sort" onClick={() => sortBy(by)}>
                    {title}
                    <span aria-hidden="true">{by === sort.by ? (sort.down ? " ↓" : " ↑") : ""}</span>
                  </button>
                ) : (
                  title
                )}
              </span>
            ))}
          </div>
          <VirtualRows items={shown} rowHeight={rowHeight} reveal={place} onVisible={(rows) => (visible.current = rows.map((row) => row.session_id))}>
            {(row, at) => <SessionRow key={row.session_id} row={row} place={at} chosen={row.session_id === chosen} height={rowHeight} />}
          </VirtualRows>
        </div>
      )}
    </section>
  );
}

interface RowProps {
  row: Row;
  place: number;
  chosen: boolean;
  height: number;
}

function SessionRow({ row, place, chosen, height }: RowProps) {
  const name = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (chosen) name.current?.focus({ preventScroll: true });
  }, [chosen]);
  const history = samples.value.get(row.session_id) ?? [];
  const last = history.at(-1);
  return (
    <div class={`row${chosen ? " row-chosen" : ""}`} role="row" aria-rowindex={place + 2} style={{ height: `${height}px` }} onClick={() => go("session", row.session_id)}>
      <span role="cell" class="cell cell-thread">
        <a ref={name} href={link("session", row.session_id)} title={row.thread_id} onClick={(event) => event.stopPropagation()}>
          {row.thread_id}
        </a>
        {row.generation > 1 && (
          <span class="tag" title="Counts the sessions of this thread">
            #{row.generation}
          </span>
        )}
      </span>
      <span role="cell" class="cell cell-state">
        <span class={`pill pill-${row.state}`}>{row.state}</span>
      </span>
      <span role="cell" class="cell cell-environment">
        {row.environment ? plainName(row.environment) : "default"} <span class="muted">{row.runtime}</span>
      </span>
      <span role="cell" class="cell cell-worker" title={row.worker}>
        {row.worker}
      </span>
      <span role="cell" class="cell cell-age">
        {ago(now.value - row.created_at)}
      </span>
      <span role="cell" class="cell cell-idle">
        {row.state === "busy" ? "–" : ago(now.value - row.used_at)}
      </span>
      <span role="cell" class="cell cell-memory">
        <Sparkline values={history.map((each) => each.memory)} label={`Memory ${bytes(last?.memory)}`} />
        {last ? bytes(last.memory) : ""}
      </span>
      <span role="cell" class="cell cell-cpu">
        <Sparkline values={history.map((each) => each.cpu)} most={0.05} label={`CPU ${percent(last?.cpu)} of a core`} />
        {last ? percent(last.cpu) : ""}
      </span>
      <span role="cell" class="cell cell-disk">
        {last ? bytes(last.disk) : ""}
      </span>
    </div>
  );
}

function matching(rows: Row[], search: string): Row[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const text = `${row.thread_id} ${row.worker} ${row.runtime} ${row.environment ?? "default"} ${row.session_id} ${row.state}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function sorted(rows: Row[], by: Column, down: boolean): Row[] {
  const direction = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[by] ?? "", b[by] ?? ""];
    if (x === y) return a.session_id < b.session_id ? -1 : 1;
    return (x < y ? -1 : 1) * direction;
  });
}
