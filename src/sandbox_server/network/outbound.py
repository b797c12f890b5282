"""What a session's connections go out with: its rules, a dialer, a meter; and notes of each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import size_text
from sandbox_server.network.dialing import Dialer, Upstream
from sandbox_server.network.hosts import IPAddress, Target
from sandbox_server.network.rules import Allowed, Refused, RuleSet, Verdict

_DAY_S = 86400
_BURST_S = 0.25
"""How much of a pause can be made up for."""
_WHY = 300


@dataclass(frozen=True, kw_only=True)
class EgressLimits:
    """Of one session; None: not bounded."""

    connections: int = 64
    bytes_a_day: int | None = None
    bytes_a_second: int | None = None


class Meter:
    """Counts the bytes of a session and holds them to its limits. A day begins at 0:00 UTC."""

    def __init__(
        self, limits: EgressLimits, *, used_today: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """used_today: bytes that an earlier process has counted."""
        self.bytes_in = 0
        """Into the box."""
        self.bytes_out = 0
        self._limits = limits
        self._clock = clock
        self._day = int(clock() // _DAY_S)
        self._today = used_today
        self._free_at = 0.0

    @property
    def total(self) -> int:
        """Bytes of both directions."""
        return self.bytes_in + self.bytes_out

    def check(self) -> None:
        """Raises Refused if the bytes of today are used up."""
        self._count(0)

    async def received(self, count: int) -> None:
        """Bytes for the box. Waits as the rate demands; raises Refused."""
        self.bytes_in += count
        await self._spend(count)

    async def sent(self, count: int) -> None:
        self.bytes_out += count
        await self._spend(count)

    async def _spend(self, count: int) -> None:
        self._count(count)
        rate = self._limits.bytes_a_second
        if rate is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - _BURST_S) + count / rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)

    def _count(self, count: int) -> None:
        day = int(self._clock() // _DAY_S)
        if day != self._day:
            self._day, self._today = day, 0
        self._today += count
        most = self._limits.bytes_a_day
        if most is not None and self._today >= most:
            raise Refused(
                f"this sandbox has used the {size_text(most)} of network traffic that it has a day;"
                " there is more from 0:00 UTC on.",
                status=429,
            )


class MeteredChannel(ByteChannel):
    """A connection of a box, whose bytes count."""

    def __init__(self, channel: ByteChannel, meter: Meter) -> None:
        self._channel = channel
        self._meter = meter
        self._bytes_in = self._bytes_out = 0

    def uncounted(self) -> tuple[int, int]:
        """Bytes into the box and out of it since this was asked last."""
        counted = self._bytes_in, self._bytes_out
        self._bytes_in = self._bytes_out = 0
        return counted

    async def read(self) -> bytes:
        data = await self._channel.read()
        self._bytes_out += len(data)
        await self._meter.sent(len(data))
        return data

    async def first(self) -> bytes:
        """The first bytes. They count, but never too much: there has to be a way to tell."""
        data = await self._channel.read()
        self._bytes_out += len(data)
        self._meter.bytes_out += len(data)
        return data

    async def write(self, data: bytes) -> None:
        self._bytes_in += len(data)
        await self._meter.received(len(data))
        await self._channel.write(data)

    async def tell(self, data: bytes) -> None:
        """Write what the proxy itself has to say, also where no more bytes may pass."""
        self._bytes_in += len(data)
        await self._channel.write(data)

    async def end(self) -> None:
        await self._channel.end()

    async def drain(self) -> bytes:
        """Read what nobody wants, uncounted."""
        return await self._channel.read()


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
