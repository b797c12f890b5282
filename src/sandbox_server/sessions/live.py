"""A live session: a record, its box and the clock of its use."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.protocol.errors import SandboxError, SessionLost
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box
from sandbox_server.sessions.registry import Record, Status

Key = tuple[str, str]
"""Tenant and thread_id."""
_IDENTITY = ("tenant", "thread_id", "generation", "session_id")
SETTLE_S = 30.0
"""How long after its time limit a command may take to be over."""


@dataclass
class LiveSession:
    record: Record
    box: Box
    agent: BoxAgent
    idle_timeout_s: float
    last_used: float
    """On the monotonic clock."""
    environment: str | None = None
    """The kind of box, where the caller has chosen one."""
    cwd: str | None = None
    """Where the last command left off, as far as this server has seen it."""
    met: bool = True
    """Whether its box has said that it is this session's. One that does not answer when a server
    takes it over is asked again before it is used."""
    may_run_until: float = -math.inf
    """Until when a command may still run whose end this server has not seen."""
    busy: int = 0
    ended: Status | None = None
    watches: set[asyncio.Task[None]] = field(default_factory=set)

    def __repr__(self) -> str:
        record = self.record
        return f"<LiveSession {record.thread_id} #{record.generation} in {self.box.id}>"

    @property
    def key(self) -> Key:
        return self.record.tenant, self.record.thread_id

    async def meet(self) -> None:
        """Make sure that the box is there and is this session's. Raises SessionLost,
        RuntimeUnavailable."""
        await self.agent.connect()
        if not self.met and (about := self.agent.about) is not None:
            if identity(about.state) != identity(vars(self.record)):
                raise SessionLost(
                    f"box {self.box.id} says that it is not session {self.record.session_id}'s"
                )
            self.met = True

    @contextmanager
    def use(self, *, for_s: float = 0.0) -> Iterator[None]:
        """Something is going on: it does not expire meanwhile, and its time begins anew after.

        for_s: how long a command may take that was begun. Where this is left by an error, such as
        the caller's leaving, the command may still run.
        """
        self.busy += 1
        self.last_used = began = time.monotonic()
        try:
            yield
        except BaseException:
            self.may_run_until = max(self.may_run_until, began + for_s)
            raise
        finally:
            self.busy -= 1
            self.last_used = time.monotonic()

    def used_at(self, idle_s: float, *, now: float) -> float:
        """When it was used last, by its box, which says how long it has been idle. The box is
        believed for as long as it may know better than this server."""
        return max(self.last_used, min(now - idle_s, self.may_run_until))

    def watch(self, command_id: str, *, for_s: float) -> None:
        """A command nobody waits for is use of the session too, until it ends, or should have: that
        is all a box can pretend."""

        async def until_it_ends() -> None:
            with suppress(SandboxError, TimeoutError):
                async with asyncio.timeout(for_s + SETTLE_S):
                    await self.agent.ended(command_id)

        def ended(task: asyncio.Task[None]) -> None:
            self.watches.discard(task)
            self.busy -= 1
            self.last_used = time.monotonic()

        self.busy += 1
        task = asyncio.create_task(until_it_ends())
        self.watches.add(task)
        task.add_done_callback(ended)

    async def let_go(self) -> None:
        """The session goes on without this server."""
        for task in self.watches:
            task.cancel()
        await asyncio.gather(*self.watches, return_exceptions=True)
        await self.agent.close()

    def idle_s(self, now: float) -> float:
        return 0.0 if self.busy else max(now - self.last_used, 0.0)

    def is_idle(self, now: float) -> bool:
        return self.idle_s(now) > self.idle_timeout_s


def state_of(record: Record, *, idle_timeout_s: float, environment: str | None) -> dict[str, Any]:
    """What a box is told of its session, for a server that finds it later."""
    kept = {name: getattr(record, name) for name in (*_IDENTITY, "created_at")}
    return {**kept, "idle_timeout_s": idle_timeout_s, "environment": environment}


def identity(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which session a state, or a record's fields, is of."""
    return tuple(state.get(name) for name in _IDENTITY)


def record_from_state(state: Mapping[str, Any], box_id: str, *, worker: str, epoch: int) -> Record:
    """The record of a session, out of what its server wrote down when it began."""
    kept = {name: state[name] for name in (*_IDENTITY, "created_at")}
    return Record(**kept, box_id=box_id, status=Status.LIVE, worker=worker, epoch=epoch)
