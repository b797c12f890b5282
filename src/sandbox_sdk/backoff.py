"""Growing pauses between attempts, up to an end, for anything that is retried."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Pauses that double each time, with jitter. They end after `most` failures, and for_s seconds
    after `since`, by default the first failure."""

    first_s: float
    longest_s: float
    for_s: float = math.inf
    most: float = math.inf
    since: float | None = None
    _failures: int = 0

    def pause_s(self, now: float, *, at_least_s: float = 0.0) -> float | None:
        """How long to wait before the next attempt. None: give up."""
        if self.since is None:
            self.since = now
        whole = min(self.first_s * 2.0 ** min(self._failures, 30), self.longest_s)
        pause_s = at_least_s + whole * random.uniform(0.5, 1.0)
        self._failures += 1
        late = now + pause_s > self.since + self.for_s
        return None if late or self._failures > self.most else pause_s

    def reset(self) -> None:
        """There was progress: earlier failures no longer count."""
        self.since, self._failures = None, 0
