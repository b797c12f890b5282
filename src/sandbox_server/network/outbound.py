"""What a session's connections go out with: its rules, a dialer, and notes of each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sandbox_server.network.dialing import Dialer, Upstream
from sandbox_server.network.hosts import IPAddress, Target
from sandbox_server.network.metering import Meter, MeteredChannel
from sandbox_server.network.refusals import Refused, Verdict
from sandbox_server.network.rules import Allowed, RuleSet

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


@dataclass(kw_only=True)
class Outbound:
    rules: RuleSet
    dialer: Dialer
    meter: Meter
    report: Callable[[Note], None]
    _open: dict[asyncio.Task[Any], tuple[Allowed, IPAddress]] = field(default_factory=dict)
    """Where the connections go that are served now, by the tasks that serve them."""

    @contextlib.asynccontextmanager
    async def connected(self, allowed: Allowed) -> AsyncIterator[Upstream]:
        """Raises Refused."""
        task, target = asyncio.current_task(), allowed.target
        assert task is not None
        async with self.dialer.connected(allowed, self.rules) as upstream:
            if not self.rules.passes(target.host, upstream.address):
                raise self.rules.denied(target)  # They have changed meanwhile.
            self._open[task] = allowed, upstream.address
            try:
                yield upstream
            finally:
                del self._open[task]

    def use(self, rules: RuleSet) -> None:
        """From now on, also for what is open: what may not be any more is cut."""
        self.rules = rules
        self.cut()

    def cut(self) -> None:
        """End what is open and not allowed any more."""
        for task, (allowed, address) in self._open.items():
            if not self.rules.keeps(allowed, address):
                task.cancel()

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
