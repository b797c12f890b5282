"""What a session's connections go out with: its rules, a dialer, and notes of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sandbox_server.network.dialing import Dialer
from sandbox_server.network.hosts import Target
from sandbox_server.network.metering import Meter, MeteredChannel
from sandbox_server.network.refusals import Refused, Verdict
from sandbox_server.network.rules import RuleSet

_WHY = 300


@dataclass
class Note:
    """One connection, or one request of those that share one. No path: it may hold a secret."""

    host: str
    port: int
    method: str
    verdict: Verdict = Verdict.ALLOWED
    why: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class Outbound:
    rules: RuleSet
    dialer: Dialer
    meter: Meter
    report: Callable[[Note], None]

    @contextlib.contextmanager
    def noted(self, box: MeteredChannel, target: Target | None, method: str = "") -> Iterator[Note]:
        """Report a connection when it is over. target: None if the box did not get to say."""
        note = (
            Note("", 0, method) if target is None else Note(str(target.host), target.port, method)
        )
        try:
            yield note
        except Refused as exc:
            note.verdict, note.why = exc.verdict, exc.text.partition(". ")[0][:_WHY]
            raise
        finally:
            note.bytes_in, note.bytes_out = box.uncounted()
            self.report(note)
