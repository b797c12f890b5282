/** The artifacts of a session: files that stay after its end. */
import { useEffect, useState } from "preact/hooks";
import { get, send } from "../lib/api";
import { bytes, dateTime, plainName } from "../lib/format";
import { save } from "../lib/save";
import type { Artifact } from "../lib/types";
import { Empty, Failure, Loading } from "../parts/states";

export function ArtifactsPanel({ session_id }: { session_id: string }) {
  const [found, setFound] = useState<{ artifacts?: Artifact[]; failed?: string }>({});
  useEffect(() => {
    const stop = new AbortController();
    get<{ artifacts: Artifact[] }>("artifacts", { session_id, limit: 1000 }, stop.signal).then(setFound, (error: Error) => {
      if (!stop.signal.aborted) setFound({ failed: error.message });
    });
    return () => stop.abort();
  }, [session_id]);
  if (found.failed) return <Failure title="The artifacts cannot be shown."><p>{found.failed}</p></Failure>;
  if (!found.artifacts) return <Loading what="artifacts" />;
  return <ArtifactList artifacts={found.artifacts} />;
}

export function ArtifactList({ artifacts }: { artifacts: Artifact[] }) {
  const [failed, setFailed] = useState("");
  if (artifacts.length === 0) {
    return (
      <Empty title="No artifact.">
        <p class="muted">
          A command keeps a file with <code>save_artifact NAME</code>.
        </p>
      </Empty>
    );
  }
  const download = async ({ artifact_id, path }: Artifact) => {
    try {
      await save(await send("GET", "artifact", { query: { artifact_id } }), path);
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  return (
    <>
      {failed && <p class="error" role="alert">{failed}</p>}
      <ul class="list">
        {artifacts.map((each) => (
          <li key={each.artifact_id} class="list-item">
            <span class="file-name">{plainName(each.path)}</span>
            <span class="muted">{bytes(each.size)}</span>
            <span class="muted">{dateTime(each.created_at)}</span>
            <button type="button" onClick={() => download(each)} aria-label={`Download ${plainName(each.path)}`}>
              Download
            </button>
          </li>
        ))}
      </ul>
    </>
  );
}
