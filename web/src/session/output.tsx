/** The output of a command as it comes, as text and nothing else. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { duration, plainOutput } from "../lib/format";
import { Failure, Loading } from "../parts/states";
import { follow, type Followed } from "./followed";
import type { Exit } from "./run";

interface Props {
  session_id: string;
  command_id: string;
}

export function CommandOutput({ session_id, command_id }: Props) {
  const [followed, setFollowed] = useState<Followed | null>(null);
  useEffect(() => {
    const [found, leave] = follow(session_id, command_id);
    setFollowed(found);
    return leave;
  }, [session_id, command_id]);
  return followed ? <Shown followed={followed} /> : <Loading what="output" />;
}

function Shown({ followed }: { followed: Followed }) {
  const { text, cut, exit, lost, failed } = followed.output.value;
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current!;
    atEnd.current = scrollTop + clientHeight > scrollHeight - 20;
  };
  if (failed) return <Failure title="The output cannot be shown."><p>{failed}</p></Failure>;
  return (
    <div class="output">
      {cut > 0 && <p class="muted">The first {cut.toLocaleString()} characters are not shown here.</p>}
      <pre ref={box} tabIndex={0} aria-label="Output" onScroll={scrolled}>
        {plainOutput(text)}
      </pre>
      <p class="muted output-end" role="status">
        {lost ? "The connection is lost. It is tried again." : exit ? ended(exit) : "Running…"}
      </p>
    </div>
  );
}

function ended(exit: Exit): string {
  const parts = [`Exit code ${exit.exit_code} after ${duration(exit.duration_ms / 1000)}.`];
  if (exit.timed_out) parts.push("Its time was over.");
  if (exit.reason === "oom") parts.push("It was out of memory.");
  if (exit.hint) parts.push(plainOutput(exit.hint));
  return parts.join(" ");
}
