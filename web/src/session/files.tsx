/** The files of a session: look around, take some out, put some in. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, send } from "../lib/api";
import { bytes, dateTime, plainName } from "../lib/format";
import { go, link } from "../lib/router";
import { save } from "../lib/save";
import type { FileEntry, SessionInfo } from "../lib/types";
import { Empty, Failure, Loading } from "../parts/states";
import { Preview } from "./preview";

const MOST = 1000;

interface Listing {
  path: string;
  entries: FileEntry[];
  truncated: boolean;
}

export function FilesPanel({ info, path }: { info: SessionInfo; path: string }) {
  const { session_id } = info;
  const [turn, setTurn] = useState(0);
  const { listing, failed } = useListing(session_id, path, turn);
  const [chosen, setChosen] = useState<FileEntry | null>(null);
  const [told, setTold] = useState("");
  const [over, setOver] = useState(false);
  useEffect(() => setChosen(null), [path]);

  const upload = async (files: File[]) => {
    for (const file of files) {
      setTold(`Uploading ${plainName(file.name)}…`);
      try {
        await uploadFile(info, path, file);
        setTold(`${plainName(file.name)} is uploaded.`);
      } catch (error) {
        setTold(`${plainName(file.name)} was not uploaded: ${(error as Error).message}`);
        break;
      }
    }
    setTurn((before) => before + 1);
  };
  const dropped = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    void upload([...(event.dataTransfer?.files ?? [])]);
  };
  return (
    <div class={`files-panel${over ? " drop-over" : ""}`} onDragOver={(event) => (event.preventDefault(), setOver(true))} onDragLeave={() => setOver(false)} onDrop={dropped}>
      <div class="bar">
        <Crumbs session_id={session_id} path={path} />
        <button type="button" onClick={() => setTurn(turn + 1)}>
          Refresh
        </button>
        <UploadButton onFiles={upload} />
      </div>
      <p class="muted" role="status">
        {told || "Drop files here to upload them."}
      </p>
      {failed && <Failure title="This folder cannot be shown."><p>{failed.message}</p></Failure>}
      {!failed && !listing && <Loading what="files" />}
      {!failed && listing && (
        <div class="split">
          <FileList session_id={session_id} listing={listing} chosen={chosen} onChoose={setChosen} />
          <div class="split-main">
            {chosen ? (
              <Preview key={chosen.path + chosen.modified_at} session_id={session_id} entry={chosen} />
            ) : (
              <Empty title="No file is chosen.">
                <p class="muted">Text, tables, pictures and PDF files are shown here.</p>
              </Empty>
            )}
          </div>
        </div>
      )}
    </div>
  );
}

function useListing(session_id: string, path: string, turn: number) {
  const [state, setState] = useState<{ listing?: Listing; failed?: ApiError }>({});
  useEffect(() => {
    const stop = new AbortController();
    get<Listing>("list_files", { session_id, path, limit: MOST }, stop.signal).then(
      (listing) => setState({ listing }),
      (failed: ApiError) => stop.signal.aborted || setState({ failed }),
    );
    return () => stop.abort();
  }, [session_id, path, turn]);
  return state;
}

/** Raises ApiError. */
async function uploadFile(info: SessionInfo, folder: string, file: File): Promise<void> {
  const limit = info.limits.upload_limit_bytes;
  if (file.size > limit) throw new ApiError(413, "file_too_large", `it has ${bytes(file.size)}, at most ${bytes(limit)} are taken.`);
  const form = new FormData();
  form.set("session_id", info.session_id);
  form.set("path", `${folder.replace(/\/$/, "")}/${file.name}`);
  form.set("file", file); // Last, so that it is stored as it comes.
  await send("POST", "upload_file", { form });
}

function UploadButton({ onFiles }: { onFiles: (files: File[]) => void }) {
  const field = useRef<HTMLInputElement>(null);
  const picked = () => {
    onFiles([...(field.current!.files ?? [])]);
    field.current!.value = "";
  };
  return (
    <>
      <input ref={field} class="sr-only" id="upload" type="file" multiple onChange={picked} tabIndex={-1} aria-label="Files to upload" />
      <button type="button" class="primary" onClick={() => field.current!.click()}>
        Upload
      </button>
    </>
  );
}

function Crumbs({ session_id, path }: { session_id: string; path: string }) {
  const parts = path.split("/").filter(Boolean);
  return (
    <nav class="crumbs" aria-label="Folder">
      {parts.map((part, at) => (
        <span key={at}>
          <span aria-hidden="true">/</span>
          <a href={link("session", session_id, "files", ...parts.slice(0, at + 1))} aria-current={at === parts.length - 1 ? "page" : undefined}>
            {plainName(part)}
          </a>
        </span>
      ))}
    </nav>
  );
}

interface ListProps {
  session_id: string;
  listing: Listing;
  chosen: FileEntry | null;
  onChoose: (entry: FileEntry) => void;
}

function FileList({ session_id, listing, chosen, onChoose }: ListProps) {
  const [failed, setFailed] = useState("");
  const download = async (entry: FileEntry) => {
    try {
      const name = entry.type === "directory" ? `${entry.name}.tar` : entry.name;
      await save(await send("GET", "download_file", { query: { session_id, path: entry.path } }), name);
      setFailed("");
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  const open = (entry: FileEntry) =>
    entry.type === "directory" ? go("session", session_id, "files", ...entry.path.split("/").filter(Boolean)) : onChoose(entry);
  if (listing.entries.length === 0) return <Empty title="This folder is empty." />;
  return (
    <div class="split-side">
      {failed && <p class="error" role="alert">{failed}</p>}
      <ul class="list" aria-label="Files">
        {sorted(listing.entries).map((entry) => (
          <li key={entry.path} class="file">
            <button type="button" class="list-item" aria-current={entry.path === chosen?.path ? "true" : undefined} onClick={() => open(entry)}>
              <span class="file-kind" aria-hidden="true">{{ directory: "▸", file: "", symlink: "→", other: "?" }[entry.type]}</span>
              <span class="file-name">
                {plainName(entry.name)}
                {entry.type === "directory" && "/"}
              </span>
              <span class="muted file-size">{entry.type === "file" ? bytes(entry.size) : ""}</span>
              <span class="muted file-time">{dateTime(entry.modified_at)}</span>
            </button>
            <button type="button" class="quiet" onClick={() => download(entry)} aria-label={`Download ${plainName(entry.name)}`} title="Download">
              ⤓
            </button>
          </li>
        ))}
      </ul>
      {listing.truncated && <p class="muted">Only the first {MOST} are shown.</p>}
    </div>
  );
}

function sorted(entries: FileEntry[]): FileEntry[] {
  const folder = (entry: FileEntry) => (entry.type === "directory" ? 0 : 1);
  return [...entries].sort((a, b) => folder(a) - folder(b) || a.name.localeCompare(b.name));
}
