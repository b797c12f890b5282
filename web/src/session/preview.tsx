/** A file from a box, shown so that it can do nothing: as text, as a picture, or in a frame. */
import { useEffect, useState } from "preact/hooks";
import { send } from "../lib/api";
import { bytes, plainName, plainOutput } from "../lib/format";
import type { FileEntry } from "../lib/types";
import { Empty, Failure, Loading } from "../parts/states";

const MIB = 1 << 20;
const PICTURES: Record<string, string> = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp",
  bmp: "image/bmp", avif: "image/avif", ico: "image/x-icon", svg: "image/svg+xml",
};
type Kind = "text" | "table" | "picture" | "pdf";
const MOST: Record<Kind, number> = { text: 2 * MIB, table: 2 * MIB, picture: 20 * MIB, pdf: 20 * MIB };
const ROWS = 200;
const COLUMNS = 50;

type Content = { kind: "text" | "table"; text: string } | { kind: "picture" | "pdf"; url: string } | { kind: "none"; why: string };

export function Preview({ session_id, entry }: { session_id: string; entry: FileEntry }) {
  const [content, setContent] = useState<Content | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    let url = "";
    load(session_id, entry, stop.signal).then(
      (found) => {
        if ("url" in found) url = found.url;
        if (!stop.signal.aborted) setContent(found);
      },
      (error: Error) => stop.signal.aborted || setFailed(error.message),
    );
    return () => (stop.abort(), URL.revokeObjectURL(url));
  }, []);
  return (
    <article class="preview" aria-label={`Preview of ${plainName(entry.name)}`}>
      <div class="bar">
        <strong class="file-name">{plainName(entry.name)}</strong>
        <span class="muted">{bytes(entry.size)}</span>
        <span class="muted">{entry.mode}</span>
      </div>
      {failed ? <Failure title="The file cannot be shown."><p>{failed}</p></Failure> : content ? <Shown content={content} name={entry.name} /> : <Loading what="the file" />}
    </article>
  );
}

async function load(session_id: string, entry: FileEntry, signal: AbortSignal): Promise<Content> {
  const ending = entry.name.toLowerCase().split(".").at(-1) ?? "";
  const kind: Kind = ending in PICTURES ? "picture" : ending === "pdf" ? "pdf" : ending === "csv" || ending === "tsv" ? "table" : "text";
  if (entry.type === "other") return { kind: "none", why: "This is not a file that can be read." };
  if (entry.size > MOST[kind]) return { kind: "none", why: `It has ${bytes(entry.size)}; up to ${bytes(MOST[kind])} are shown. Download it.` };
  const answer = await send("GET", "download_file", { query: { session_id, path: entry.path }, signal });
  const data = await answer.arrayBuffer();
  // The type is the one we chose, never one that the box could choose: the browser shows it as that or not at all.
  if (kind === "picture") return { kind, url: URL.createObjectURL(new Blob([data], { type: PICTURES[ending] })) };
  if (kind === "pdf") return { kind, url: URL.createObjectURL(new Blob([data], { type: "application/pdf" })) };
  try {
    return { kind, text: new TextDecoder("utf-8", { fatal: true }).decode(data) };
  } catch {
    return { kind: "none", why: "It is not text. Download it." };
  }
}

function Shown({ content, name }: { content: Content; name: string }) {
  switch (content.kind) {
    case "none":
      return <Empty title={content.why} />;
    case "picture":
      return <img src={content.url} alt={plainName(name)} />;
    case "pdf":
      return <iframe src={content.url} title={plainName(name)} />;
    case "table":
      return <Table text={content.text} separator={name.toLowerCase().endsWith(".tsv") ? "\t" : ","} />;
    case "text":
      return (
        <pre tabIndex={0} aria-label="Content">
          {plainOutput(content.text)}
        </pre>
      );
  }
}

function Table({ text, separator }: { text: string; separator: string }) {
  const rows = parseCsv(text, separator, ROWS + 1);
  const [head = [], ...body] = rows.slice(0, ROWS);
  const wide = rows.some((row) => row.length > COLUMNS);
  return (
    <div class="csv" tabIndex={0}>
      <table>
        <thead>
          <tr>{head.slice(0, COLUMNS).map((cell, at) => <th key={at} scope="col">{plainName(cell)}</th>)}</tr>
        </thead>
        <tbody>
          {body.map((row, at) => (
            <tr key={at}>{row.slice(0, COLUMNS).map((cell, column) => <td key={column}>{plainName(cell)}</td>)}</tr>
          ))}
        </tbody>
      </table>
      {(rows.length > ROWS || wide) && <p class="muted">The first {ROWS} rows and {COLUMNS} columns are shown.</p>}
    </div>
  );
}

/** At most so many rows. A quoted field may contain separators, line ends and doubled quotes. */
export function parseCsv(text: string, separator: string, most: number): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let field = "";
  let quoted = false;
  for (let at = 0; at < text.length && rows.length < most; at++) {
    const char = text[at]!;
    if (quoted) {
      if (char !== '"') field += char;
      else if (text[at + 1] === '"') (field += '"'), at++;
      else quoted = false;
    } else if (char === '"' && field === "") quoted = true;
    else if (char === separator) (row.push(field), (field = ""));
    else if (char === "\n") (row.push(field.replace(/\r$/, "")), rows.push(row), (row = []), (field = ""));
    else field += char;
  }
  if (rows.length < most && (field || row.length)) rows.push([...row, field]);
  return rows;
}
