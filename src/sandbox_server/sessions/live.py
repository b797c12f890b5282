"""A live session: a record, its box and the clock of its use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.sessions.registry import Record, Status


@dataclass
class LiveSession:
    record: Record
    box: Box
    warden: WardenClient
    idle_timeout_s: float
    last_used: float
    """On the monotonic clock."""
    environment: str | None = None
    """The kind of box, where the caller has chosen one."""
    cwd: str | None = None
    """Where the last command left off, as far as this server has seen it."""
    met: bool = True
    """Whether its box has said what it is. One that does not answer when a server takes it over is
    asked again before it is used."""
    busy: int = 0
    ended: Status | None = None
    watches: set[asyncio.Task[None]] = field(default_factory=set)

    def __repr__(self) -> str:
        record = self.record
        return f"<LiveSession {record.thread_id} #{record.generation} in {self.box.id}>"

    async def meet(self) -> None:
        """Make sure that the box is there. Raises SessionLost, RuntimeUnavailable."""
        await self.warden.connect()
        if not self.met and (about := self.warden.about) is not None:
            self.idle_timeout_s, self.environment = kept_in(about.state, self.idle_timeout_s)
            self.met = True

    @contextmanager
    def use(self, clock: Callable[[], float]) -> Iterator[None]:
        """Something is going on: it does not expire meanwhile, and its time begins anew after."""
        self.busy += 1
        self.last_used = clock()
        try:
            yield
        finally:
            self.busy -= 1
            self.last_used = clock()

    def watch(self, command_id: str, *, clock: Callable[[], float]) -> None:
        """A command nobody waits for is use of the session too, until it ends."""

        async def until_it_ends() -> None:
            with suppress(SandboxError):
                await self.warden.ended(command_id)

        def ended(task: asyncio.Task[None]) -> None:
            self.watches.discard(task)
            self.busy -= 1
            self.last_used = clock()

        self.busy += 1
        task = asyncio.create_task(until_it_ends())
        self.watches.add(task)
        task.add_done_callback(ended)

    async def let_go(self) -> None:
        """The session goes on without this server."""
        for task in self.watches:
            task.cancel()
        await asyncio.gather(*self.watches, return_exceptions=True)
        await self.warden.close()

    def idle_s(self, now: float) -> float:
        return 0.0 if self.busy else max(now - self.last_used, 0.0)

    def is_idle(self, now: float) -> bool:
        return self.idle_s(now) > self.idle_timeout_s


def state_of(record: Record, *, idle_timeout_s: float, environment: str | None) -> dict[str, Any]:
    """What a box is told of its session, for a server that finds it later."""
    return {
        "tenant": record.tenant,
        "thread_id": record.thread_id,
        "generation": record.generation,
        "session_id": record.session_id,
        "created_at": record.created_at,
        "idle_timeout_s": idle_timeout_s,
        "environment": environment,
    }


def kept_in(state: dict[str, Any], idle_timeout_s: float) -> tuple[float, str | None]:
    """How long a session may be idle and its environment, as its box was told.

    Raises TypeError or ValueError where it carries nonsense.
    """
    environment = state.get("environment")
    return (
        float(state.get("idle_timeout_s", idle_timeout_s)),
        None if environment is None else str(environment),
    )


def record_from_state(
    state: dict[str, Any], box_id: str, *, worker: str, epoch: int
) -> Record | None:
    """The record a box carries, or None where it has never been given to a session.

    Raises KeyError, TypeError or ValueError where it carries nonsense.
    """
    if not state:
        return None
    return Record(
        tenant=str(state["tenant"]),
        thread_id=str(state["thread_id"]),
        generation=int(state["generation"]),
        session_id=str(state["session_id"]),
        box_id=box_id,
        status=Status.LIVE,
        created_at=float(state["created_at"]),
        worker=worker,
        epoch=epoch,
    )
