/** The checkpoints of a thread: taking them, going back to one, and beginning another thread with it. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get, post } from "../lib/api";
import { bytes, dateTime, plainName } from "../lib/format";
import { go } from "../lib/router";
import type { Checkpoint, SessionInfo } from "../lib/types";
import { Question } from "../parts/dialog";
import { Empty, Failure, Loading } from "../parts/states";

interface Found {
  checkpoints?: Checkpoint[];
  failed?: string;
}

export function CheckpointsPanel({ info }: { info: SessionInfo }) {
  const { thread_id, session_id } = info;
  const [found, setFound] = useState<Found>({});
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState(false);
  const look = useCallback(async () => {
    try {
      setFound(await get<{ checkpoints: Checkpoint[] }>("checkpoints", { thread_id, limit: 1000 }));
    } catch (error) {
      setFound({ failed: (error as Error).message });
    }
  }, [thread_id]);
  useEffect(() => void look(), [look]);

  /** One thing at a time; what goes wrong is told, and the list is as it was. */
  const carryOut = async (work: () => Promise<unknown>) => {
    setBusy(true);
    setFailed("");
    try {
      await work();
      await look();
    } catch (error) {
      setFailed((error as Error).message);
    }
    setBusy(false);
  };
  const take = (name: string) => carryOut(() => post("checkpoints", { session_id, ...(name && { name }) }));
  const restore = ({ checkpoint_id }: Checkpoint) =>
    carryOut(async () => {
      const made = await post<SessionInfo>("restore", { thread_id, checkpoint_id });
      go("session", made.session_id, "checkpoints");
    });
  const fork = ({ checkpoint_id }: Checkpoint) =>
    carryOut(async () => {
      const into = [`${thread_id.slice(0, 100)}.fork-${crypto.getRandomValues(new Uint32Array(1))[0]!.toString(16)}`];
      const { sessions } = await post<{ sessions: SessionInfo[] }>("fork", { checkpoint_id, into });
      go("session", sessions[0]!.session_id);
    });
  const remove = ({ checkpoint_id }: Checkpoint) => carryOut(() => post("checkpoint/delete", { checkpoint_id }));

  return (
    <>
      <TakeForm busy={busy} onTake={take} />
      {failed && <p class="error" role="alert">{failed}</p>}
      <CheckpointList found={found} busy={busy} onRestore={restore} onFork={fork} onRemove={remove} />
    </>
  );
}

function TakeForm({ busy, onTake }: { busy: boolean; onTake: (name: string) => void }) {
  const [name, setName] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    onTake(name.trim());
    setName("");
  };
  return (
    <form class="bar" onSubmit={submit}>
      <input
        value={name}
        maxLength={200}
        placeholder="Name (optional)"
        aria-label="Name of the checkpoint"
        onInput={(event) => setName(event.currentTarget.value)}
      />
      <button type="submit" disabled={busy}>
        Take a checkpoint
      </button>
    </form>
  );
}

interface ListProps {
  found: Found;
  busy: boolean;
  onRestore: (each: Checkpoint) => void;
  onFork: (each: Checkpoint) => void;
  onRemove: (each: Checkpoint) => void;
}

function CheckpointList({ found, busy, onRestore, onFork, onRemove }: ListProps) {
  const [asking, setAsking] = useState<{ each: Checkpoint; remove: boolean } | null>(null);
  if (found.failed) return <Failure title="The checkpoints cannot be shown."><p>{found.failed}</p></Failure>;
  if (!found.checkpoints) return <Loading what="checkpoints" />;
  if (found.checkpoints.length === 0) {
    return (
      <Empty title="No checkpoint.">
        <p class="muted">A checkpoint is a copy of the files and the shell, to go back to or to begin another thread with.</p>
      </Empty>
    );
  }
  return (
    <>
      <ul class="list">
        {found.checkpoints.map((each) => (
          <li key={each.checkpoint_id} class="list-item" title={each.checkpoint_id}>
            <span class="file-name">{titleOf(each)}</span>
            <span class="muted">{bytes(each.size)}</span>
            <span class="muted">{dateTime(each.created_at)}</span>
            <button type="button" disabled={busy} onClick={() => setAsking({ each, remove: false })}>
              Go back
            </button>
            <button type="button" disabled={busy} onClick={() => onFork(each)}>
              Fork
            </button>
            <button type="button" class="danger" disabled={busy} onClick={() => setAsking({ each, remove: true })}>
              Delete
            </button>
          </li>
        ))}
      </ul>
      {asking && (
        <Question
          title={asking.remove ? "Delete this checkpoint?" : "Go back to this checkpoint?"}
          action={asking.remove ? "Delete it" : "Go back to it"}
          onConfirm={() => {
            setAsking(null);
            (asking.remove ? onRemove : onRestore)(asking.each);
          }}
          onClose={() => setAsking(null)}
        >
          <p>
            <strong>{titleOf(asking.each)}</strong>,{" "}
            {asking.remove
              ? "and what only it has. Threads that began with it stay as they are."
              : "files and shell. What runs in the session ends, and what was done since is gone unless it is in a checkpoint."}
          </p>
        </Question>
      )}
    </>
  );
}

function titleOf(each: Checkpoint): string {
  return each.name ? plainName(each.name) : each.automatic ? "automatic" : each.checkpoint_id;
}
