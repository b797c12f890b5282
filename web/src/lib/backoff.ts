/** Pauses between attempts: longer each time, up to a bound, and never in step with other pages. */
export class Backoff {
  private attempts = 0;

  constructor(
    private readonly firstMs = 300,
    private readonly longestMs = 8000,
  ) {}

  reset(): void {
    this.attempts = 0;
  }

  nextMs(): number {
    const ms = Math.min(this.firstMs * 2 ** this.attempts++, this.longestMs);
    return ms * (0.75 + Math.random() / 2);
  }
}

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
