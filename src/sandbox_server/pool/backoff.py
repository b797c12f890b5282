"""How long to wait before retrying a failing engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 0.5
CAP_S = 30.0


def backoff(failures: int, *, jitter: float) -> float:
    """Seconds to wait after consecutive failures: doubled each time, up to a cap.

    `jitter` is a random number from 0 to 1; the wait is between half and all of that time.
    """
    if failures <= 0:
        return 0.0
    whole: float = min(CAP_S, FIRST_S * 2.0 ** min(failures - 1, 64))
    return whole * (0.5 + 0.5 * jitter)


@dataclass(frozen=True)
class Health:
    """Whether boxes can be started now; if not, why, and when to retry."""

    failures: int = 0
    failure: str | None = None
    retry_at: float = 0.0

    def failed(self, why: str, *, now: float, jitter: float) -> Health:
        """Starts that fail together count as one failure, so that the wait does not grow."""
        if now < self.retry_at:
            return Health(self.failures, why, self.retry_at)
        failures = self.failures + 1
        return Health(failures, why, now + backoff(failures, jitter=jitter))
