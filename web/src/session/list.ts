/** The commands of a session with their texts, as far as the server knows them. */
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../lib/api";
import { pause } from "../lib/backoff";
import type { CommandInfo, StoredCommand, StoredSessionDetail } from "../lib/types";

const EVERY_MS = 2000;

/** What is known of a command besides its state. */
export interface Known {
  command: string;
  duration_ms?: number;
}

/** Started on this page: the server tells the text of others once it has stored them. */
const startedHere = signal<ReadonlyMap<string, Known>>(new Map());

export function remember(command_id: string, known: Known): void {
  startedHere.value = new Map(startedHere.value).set(command_id, known);
}

export interface Listed {
  commands?: CommandInfo[];
  truncated: boolean;
  known: ReadonlyMap<string, Known>;
  problem: string;
}

/** Asks again and again, as long as the page is seen. */
export function useCommands(session_id: string): Listed {
  const [listed, setListed] = useState<Omit<Listed, "known">>({ truncated: false, problem: "" });
  const [stored, setStored] = useState<ReadonlyMap<string, Known>>(new Map());
  useEffect(() => {
    const stop = new AbortController();
    const follow = async () => {
      let texts: ReadonlyMap<string, Known> = new Map();
      while (!stop.signal.aborted) {
        try {
          const answer = await get<{ commands: CommandInfo[]; truncated: boolean }>("commands", { session_id }, stop.signal);
          setListed({ ...answer, problem: "" });
          if (answer.commands.some((each) => !each.running && !texts.has(each.command_id))) {
            texts = await storedTexts(session_id, stop.signal);
            setStored(texts);
          }
        } catch (error) {
          if (stop.signal.aborted) return;
          setListed((before) => ({ ...before, problem: (error as Error).message }));
          if (error instanceof ApiError && !error.passing) return;
        }
        await pause(EVERY_MS, stop.signal);
        while (document.hidden && !stop.signal.aborted) await pause(EVERY_MS, stop.signal);
      }
    };
    void follow();
    return () => stop.abort();
  }, [session_id]);
  return { ...listed, known: new Map([...stored, ...startedHere.value]) };
}

async function storedTexts(session_id: string, stop: AbortSignal): Promise<ReadonlyMap<string, Known>> {
  try {
    const detail = await get<StoredSessionDetail>(`api/sessions/${encodeURIComponent(session_id)}`, {}, stop);
    return new Map(detail.log.map((each: StoredCommand) => [each.command_id, each]));
  } catch (error) {
    // A server may store nothing: the list is there all the same.
    if (error instanceof ApiError && !error.passing) return new Map();
    throw error;
  }
}
