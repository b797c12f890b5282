/** Numbers, times and texts for people. */

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) (value /= 1024), unit++;
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function duration(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Whole seconds, for what counts up in front of a reader. */
export function ago(seconds: number): string {
  return seconds < 1 ? "now" : duration(Math.floor(seconds)).replace(".0 ", " ");
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** The time for what is of today, else the date too. */
export function dateTime(iso: string): string {
  const date = new Date(iso);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function count(number: number, what: string): string {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
// They reorder or hide the text around them.
const INVISIBLE = /[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** Output of a box without what steers a terminal: colours go, other controls become visible. */
export function plainOutput(text: string): string {
  return text.replaceAll("\r\n", "\n").replace(ESCAPES, "").replace(CONTROLS, shown).replace(INVISIBLE, named);
}

/** A name from a box on one line, with nothing in it that cannot be seen. */
export function plainName(text: string): string {
  return text.replace(/[\x00-\x1f\x7f-\x9f]/g, shown).replace(INVISIBLE, named);
}

function shown(char: string): string {
  const code = char.charCodeAt(0);
  if (code === 13) return "\n";
  return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "␡" : named(char);
}

function named(char: string): string {
  return `‹U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
}
