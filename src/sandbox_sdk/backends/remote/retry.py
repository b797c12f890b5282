"""How often a call is repeated, and when it is given up. Knows nothing of HTTP."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sandbox_sdk.protocol.errors import SandboxError

FIRST_CONTACT_S = 3.0
"""How long a server is waited for that has never answered: its address may just be wrong."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
HELD_S = 5.0
"""A connection that lasted so long was a working one: patience begins anew after it."""


class FailedAttempt(Exception):
    """One attempt has failed. `error` is what to tell where there is no other.

    repeatable: whether another attempt may follow. unreached: it has not come as far as the server.
    after_s: when the server wants to be asked again.
    """

    def __init__(
        self,
        error: SandboxError,
        *,
        repeatable: bool,
        unreached: bool = False,
        after_s: float = 0.0,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.repeatable = repeatable
        self.unreached = unreached
        self.after_s = after_s

    @property
    def cut(self) -> bool:
        """Whether a connection there was has ended too soon."""
        return not self.unreached and not self.after_s


@dataclass
class Retry:
    """The repeats of one call: pauses grow and are never quite the same, and come to an end."""

    for_s: float
    known: bool
    """Whether the server has ever answered."""
    _since: float | None = None
    _failures: int = 0

    def pause_s(self, setback: FailedAttempt, now: float) -> float | None:
        """How long to wait before the next attempt. None: give up."""
        if not setback.repeatable:
            return None
        if self._since is None:
            self._since = now
        longest = min(FIRST_PAUSE_S * (1 << self._failures), LONGEST_PAUSE_S)
        pause_s = setback.after_s + longest * random.uniform(0.5, 1.0)
        for_s = self.for_s
        if setback.unreached and not self.known:
            for_s = min(for_s, FIRST_CONTACT_S)
        if now + pause_s > self._since + for_s:
            return None
        self._failures = min(self._failures + 1, 10)
        return pause_s

    def look_back(self, setback: FailedAttempt, *, lasted_s: float) -> None:
        """What is cut again and again, but worked for a while each time, gets somewhere."""
        if setback.cut and lasted_s > HELD_S:
            self.start_over()

    def start_over(self) -> None:
        """There was progress: what failed before does not count any more."""
        self._since, self._failures = None, 0
