"""Counts what callers ask for, against their limits: in memory, or in Redis for a fleet."""

from __future__ import annotations

import math
import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog

from sandbox_server.usage.figures import key_in

if TYPE_CHECKING:
    from sandbox_server.fleet.store import Store

log = structlog.get_logger()

HELD_S = 60.0
"""After which a fleet no longer counts the command of a server that has died, or its sessions."""
_ROWS = 4096
_LOOKS = 32
_NO_BOUND = 1 << 50
_TOLD_S = 10.0
"""How often it is told that the same tenant or key is at the same limit."""
OnReached = Callable[[str, str, str, str], None]
"""Called with a tenant, the name of the limit that was reached, its rule, and the id of the key
whose limit it is, or nothing."""


class SharedNumbers:
    """Numbers by name in memory that the processes of a server share after a fork.

    A name has a row, found by its digest, with a column for each process. Two processes that write
    the same number at once may lose one of the writes: a limit is then off by one call.

    Make it before the fork. With more names than rows, the oldest are forgotten."""

    def __init__(self, columns: int = 1) -> None:
        self._columns = columns
        self._names = memoryview(mmap.mmap(-1, 8 * _ROWS)).cast("Q")
        self._numbers = memoryview(mmap.mmap(-1, 8 * _ROWS * columns)).cast("d")

    def get(self, name: str, column: int = 0) -> float:
        return self._numbers[self._row(name) * self._columns + column]

    def put(self, name: str, number: float, column: int = 0) -> None:
        self._numbers[self._row(name) * self._columns + column] = number

    def total(self, name: str) -> float:
        return self._sum(self._row(name))

    def clear(self, column: int) -> None:
        """Of a process that begins."""
        for row in range(_ROWS):
            if self._names[row]:
                self._numbers[row * self._columns + column] = 0.0

    def _row(self, name: str) -> int:
        digest = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1
        first = least = digest % _ROWS
        for step in range(_LOOKS):
            row = (first + step) % _ROWS
            if self._names[row] == digest:
                return row
            if self._names[row] == 0:
                self._names[row] = digest
                return row
            if self._sum(row) < self._sum(least):
                least = row
        self._names[least] = digest
        for column in range(self._columns):
            self._numbers[least * self._columns + column] = 0.0
        return least

    def _sum(self, row: int) -> float:
        start = row * self._columns
        return sum(self._numbers[start : start + self._columns])


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one request."""

    allowed: bool
    left: int
    """How many more there may be at once."""
    wait_s: float
    """Until the next one may come; 0.0 if that is now."""


class Limiter(ABC):
    """Names are those of tenants and keys."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}
        self.on_reached: OnReached = lambda _tenant, _limit, _rule, _key_id: None

    def reached(self, tenant: str, limit: str, rule: str, *, of: str) -> None:
        """Somebody was refused. of: the tenant, or one of its keys."""
        now = time.monotonic()
        if now <= self._told.get((of, limit), 0.0):
            return
        if len(self._told) > 10_000:
            self._told.clear()
        self._told[of, limit] = now + _TOLD_S
        log.warning("limit.reached", of=of, limit=limit, rule=rule)
        self.on_reached(tenant, limit, rule, key_in(of))

    @abstractmethod
    async def take(self, name: str, *, per_s: float, burst: int) -> Taken:
        """One of a rate: `burst` at once, and then so many a second."""

    @abstractmethod
    async def hold(self, name: str, holder: str, *, most: int | None) -> bool:
        """Begin one of at most so many at a time; None: whatever there is. `renew` it within
        HELD_S, and `release` it."""

    @abstractmethod
    async def renew(self, name: str, holder: str) -> None: ...

    @abstractmethod
    async def release(self, name: str, holder: str) -> None: ...

    @abstractmethod
    async def add_session(self, tenant: str, mine: int, *, most: int) -> int | None:
        """One more live session, beside `mine` of this server. None if there may be one, else how
        many there are."""

    @abstractmethod
    async def have_sessions(self, tenant: str, mine: int) -> None:
        """How many sessions of a tenant this server has. Within HELD_S, again."""


def holder_name() -> str:
    return os.urandom(12).hex()


def taken_at(arrival: float, now: float, *, per_s: float, burst: int) -> tuple[Taken, float]:
    """The generic cell rate algorithm: one number says all there is to know of the past. Also
    returns that number for the next time, in seconds."""
    each = 1 / per_s
    at = max(arrival, now) + each
    ahead = at - now
    most = burst * each
    if ahead > most + 1e-9:
        return Taken(False, 0, ahead - most), arrival
    return Taken(True, math.floor((most - ahead) / each + 1e-6), 0.0), at


class MemoryLimiter(Limiter):
    """Of one server and all its processes. Make it before they are forked."""

    def __init__(self, processes: int = 1, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._arrivals = SharedNumbers()
        self._held = SharedNumbers(processes)
        self._sessions = SharedNumbers(processes)
        self._index = 0

    def of_process(self, index: int) -> MemoryLimiter:
        """For one of several processes, after the fork. What its predecessor held is let go."""
        self._index = index
        self._held.clear(index)
        self._sessions.clear(index)
        return self

    async def take(self, name: str, *, per_s: float, burst: int) -> Taken:
        taken, arrival = taken_at(self._arrivals.get(name), self._clock(), per_s=per_s, burst=burst)
        self._arrivals.put(name, arrival)
        return taken

    async def hold(self, name: str, _holder: str, *, most: int | None) -> bool:
        if most is not None and self._held.total(name) >= most:
            return False
        self._held.put(name, self._held.get(name, self._index) + 1, self._index)
        return True

    async def renew(self, name: str, holder: str) -> None:
        """No-op: what this server holds ends with it."""

    async def release(self, name: str, _holder: str) -> None:
        self._held.put(name, max(self._held.get(name, self._index) - 1, 0.0), self._index)

    async def add_session(self, tenant: str, mine: int, *, most: int) -> int | None:
        self._sessions.put(tenant, mine, self._index)
        found = round(self._sessions.total(tenant))
        if found >= most:
            return found
        self._sessions.put(tenant, mine + 1, self._index)
        return None

    async def have_sessions(self, tenant: str, mine: int) -> None:
        self._sessions.put(tenant, mine, self._index)


class RedisLimiter(Limiter):
    """Of a fleet: each step is one script, by the clock of Redis."""

    def __init__(self, store: Store, server: str) -> None:
        super().__init__()
        self._store = store
        self._server = server

    async def take(self, name: str, *, per_s: float, burst: int) -> Taken:
        allowed, left, wait = await self._store.limit(name, "rate", 1 / per_s, burst)
        return Taken(bool(int(allowed)), int(left), float(wait))

    async def hold(self, name: str, holder: str, *, most: int | None) -> bool:
        bound = _NO_BOUND if most is None else most
        return bool(int((await self._store.limit(name, "hold", holder, bound, HELD_S))[0]))

    async def renew(self, name: str, holder: str) -> None:
        await self._store.limit(name, "renew", holder, HELD_S)

    async def release(self, name: str, holder: str) -> None:
        await self._store.limit(name, "release", holder)

    async def add_session(self, tenant: str, mine: int, *, most: int) -> int | None:
        told = await self._store.limit(tenant, "session", self._server, mine, most, HELD_S)
        return None if int(told[0]) else int(told[1])

    async def have_sessions(self, tenant: str, mine: int) -> None:
        await self._store.limit(tenant, "sessions", self._server, mine, HELD_S)
