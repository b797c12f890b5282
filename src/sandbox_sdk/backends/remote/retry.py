"""When a call is repeated, and when it is given up. Knows nothing of HTTP."""

from __future__ import annotations

import math

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import SandboxError

FIRST_CONTACT_S = 3.0
"""How long to retry a server that has never answered: its address may be wrong."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
HELD_S = 5.0
"""A connection that lasted this long had worked: the time for retries starts over."""


class FailedAttempt(Exception):
    """One attempt has failed. `error` is what to raise if there is no other attempt.

    repeatable: whether there may be another. unreached: no connection to the server was made.
    after_s: the server's Retry-After.
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
        """Whether a connection was made and ended too soon."""
        return not self.unreached and not self.after_s


class Retry:
    """The repeats of one call."""

    def __init__(self, for_s: float, *, known: bool) -> None:
        """known: whether the server has ever answered."""
        self._known = known
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, for_s)

    def pause_s(self, failed: FailedAttempt, now: float) -> float | None:
        """How long to wait before the next attempt. None: give up."""
        if not failed.repeatable:
            return None
        maybe_wrong = failed.unreached and not self._known
        within_s = FIRST_CONTACT_S if maybe_wrong else math.inf
        return self._backoff.pause_s(now, at_least_s=failed.after_s, within_s=within_s)

    def look_back(self, failed: FailedAttempt, *, lasted_s: float) -> None:
        """Start over if the connection had worked for a while before it was cut."""
        if failed.cut and lasted_s > HELD_S:
            self.start_over()

    def start_over(self) -> None:
        """There was progress: earlier failures no longer count."""
        self._backoff.reset()
