/** Server-sent events, read with fetch: EventSource cannot send a key. */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Longer than the server is ever silent: it sends a comment every 15 s. */
const SILENCE_MS = 40_000;

/** Yields the events of an answer. Ends with it, and raises where nothing comes any more. */
export async function* serverEvents(answer: Response): AsyncGenerator<ServerEvent> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await within(SILENCE_MS, reader.read());
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const found = parsed(part);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function parsed(part: string): ServerEvent | null {
  let event = "message";
  const data: string[] = [];
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer = 0;
  const late = new Promise<never>((_, reject) => {
    timer = window.setTimeout(() => reject(new Error("nothing was heard of the server")), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
