/** What the policy says of a command, asked while it is written. */
import { useEffect, useState } from "preact/hooks";
import { post } from "../lib/api";
import { plainOutput } from "../lib/format";
import type { Verdict } from "../lib/types";

const PAUSE_MS = 300;

type Target = { session_id: string } | { thread_id: string };

/** The verdict of the last text that stood still; nothing runs. */
export function useVerdict(target: Target, command: string): Verdict | { problem: string } | null {
  const [verdict, setVerdict] = useState<Verdict | { problem: string } | null>(null);
  const aim = JSON.stringify(target);
  useEffect(() => {
    if (!command.trim()) return setVerdict(null);
    let current = true;
    const timer = setTimeout(async () => {
      const found = await post<Verdict>("execute", { ...target, command, dry_run: true }).catch((error: Error) => ({ problem: error.message }));
      if (current) setVerdict(found);
    }, PAUSE_MS);
    return () => ((current = false), clearTimeout(timer));
  }, [aim, command]);
  return verdict;
}

export function VerdictLine({ verdict }: { verdict: Verdict | { problem: string } }) {
  if ("problem" in verdict) return <p class="error">{verdict.problem}</p>;
  if (verdict.allowed) {
    return (
      <p class="verdict">
        <span class="pill pill-ok">allowed</span> <span class="muted">by the policy {verdict.policy}</span>
        {verdict.doubts.length > 0 && <span class="muted"> · not certain: {plainOutput(verdict.doubts.join("; "))}</span>}
      </p>
    );
  }
  return (
    <p class="verdict">
      <span class="pill pill-bad">rejected</span> {plainOutput(verdict.reason ?? "")}
      {verdict.alternative && <span class="muted"> Instead: {plainOutput(verdict.alternative)}</span>}
    </p>
  );
}
