"""When a call is repeated, and when it is given up. Knows nothing of HTTP."""

from __future__ import annotations

import math

from sandbox_sdk.backoff import Backoff
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
        wrong = failed.unreached and not self._known
        within_s = FIRST_CONTACT_S if wrong else math.inf
        return self._backoff.pause_s(now, at_least_s=failed.after_s, within_s=within_s)

    def look_back(self, failed: FailedAttempt, *, lasted_s: float) -> None:
        """What is cut again and again, but worked for a while each time, gets somewhere."""
        if failed.cut and lasted_s > HELD_S:
            self.start_over()

    def start_over(self) -> None:
        """There was progress: what failed before does not count any more."""
        self._backoff.reset()
