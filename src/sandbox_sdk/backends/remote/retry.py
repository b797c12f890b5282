"""When a call is repeated, and when it is given up. Knows nothing of HTTP."""

from __future__ import annotations

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import SandboxError

FIRST_CONTACT_S = 3.0
"""How long a call to a server that has never answered is retried: its address may be wrong."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
HELD_S = 5.0
"""A connection that lasted this long had worked: the time for retries starts over."""
TAKEN_S = 1.0
"""A connection that lasted this long was not closed for what it is: somebody took the call."""
SILENT_S = 3.0
"""How long a call is retried before its caller is told."""


class FailedAttempt(Exception):
    """One attempt has failed. `error` is what to raise if there is no other attempt.

    repeatable: whether there may be another. unreached: no connection to the server was made.
    after_s: the server's Retry-After. seen: what happened, in a few words.
    """

    def __init__(
        self,
        error: SandboxError,
        *,
        repeatable: bool,
        unreached: bool = False,
        after_s: float = 0.0,
        seen: str = "",
    ) -> None:
        super().__init__(error.message)
        self.seen = seen or error.message
        self.error = error
        self.repeatable = repeatable
        self.unreached = unreached
        self.after_s = after_s

    @property
    def cut(self) -> bool:
        """Whether a connection was made and ended too soon."""
        return not self.unreached and not self.after_s


class Retry:
    """The repeats of one call.

    A server that has answered before is waited for: it is likely to be restarted. One that never
    has may be the wrong one, whether it refuses connections or closes them, and is given up soon.
    """

    def __init__(self, for_s: float, *, known: bool, began: float, client: object) -> None:
        """known: whether the server has ever answered. began: when the call did. client: whose
        connections it uses."""
        self.client = client
        self.known = known
        self._began = began
        self._for_s = for_s
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, for_s)
        self._told = False

    def pause_s(self, failed: FailedAttempt, now: float) -> float | None:
        """How long to wait before the next attempt. None: give up."""
        if not failed.repeatable:
            return None
        pause_s = self._backoff.pause_s(now, at_least_s=failed.after_s)
        maybe_wrong = not self.known and not failed.after_s
        if pause_s is not None and maybe_wrong and now + pause_s > self._began + FIRST_CONTACT_S:
            return None
        return pause_s

    def to_tell_s(self, now: float, pause_s: float) -> float | None:
        """How long the call will go on to be repeated, where its caller is to be told so now: once,
        after SILENT_S without success. A server that is given up soon tells by its error."""
        since = now if self._backoff.since is None else self._backoff.since
        if self._told or not self.known or now + pause_s < since + SILENT_S:
            return None
        self._told = True
        return since + self._for_s - now

    def look_back(self, failed: FailedAttempt, *, lasted_s: float) -> None:
        """Start over if the connection had worked for a while before it was cut."""
        if failed.cut and lasted_s > TAKEN_S:
            self.known = True
        if failed.cut and lasted_s > HELD_S:
            self.start_over()

    def start_over(self) -> None:
        """There was progress: earlier failures no longer count."""
        self._backoff.reset()
        self._told = False
