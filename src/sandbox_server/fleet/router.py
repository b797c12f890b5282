"""The router: finds the worker for a call, and retries the call until it is answered.

While the worker that has the thread is away, a call waits. Once that worker is gone, the call fails
with SessionLost or, for a thread_id, gets a new session elsewhere. A call that may have begun is
pinned to that session: a retry can join what it began, but never begin a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import (
    Capacity,
    Misdirected,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
    Unreachable,
)
from sandbox_sdk.protocol.models import Target
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.providers import no_provider
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.fleet.directory import Directory, Location
from sandbox_server.fleet.workers import Presence, Worker, place
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.sessions.registry import Record, Status, error_for
from sandbox_server.tasks import TaskSet

_KNOWN = 10_000
"""Size of the cache of threads' workers, used while Redis does not answer."""
_FRESH_S = 2.0
"""How long a worker that answered is used again without a lookup. If it no longer has the thread,
it says so or cannot be reached."""
_REGISTRY_S = 0.5
"""Timeout for the registry when the cache already knows the worker."""
_SILENT_S = 1.0
"""How long the registry is skipped after such a timeout."""
_UNUSED_S = 60.0
"""How long an unused client is kept."""
_CLOSE_S = 5.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
_Answer = TypeVar("_Answer")
Call = Callable[[Sandboxes, Target | None], Awaitable[_Answer]]


@dataclass(kw_only=True)
class Attempt:
    """The state of one call across its retries."""

    tenant: str
    target: Target | None
    """None for a new session without a thread_id."""
    creates: bool
    repeatable: bool
    """Whether it may be sent again after it may have begun."""
    backoff: Backoff
    provider: str | None = None
    """The one that a new session asks for."""
    only: frozenset[str] | None = None
    """The workers that can make the session; None: any."""
    as_before: bool = True
    """Whether a new session of a thread has what the one before had, its volumes too."""
    near: str | None = None
    """The worker that had the thread's last session: what it has kept of it may be there."""
    full: set[str] = field(default_factory=set)
    """Workers that refused it for lack of room."""
    unable: set[str] = field(default_factory=set)
    """Workers that were unavailable: others are tried first."""
    begun: bool = False
    """Whether a worker may have begun it."""
    pinned: bool = False
    """Whether the target was replaced by the session in which it may have begun."""
    taken_over: bool = False
    """Whether it was sent to a worker that is to take its session over."""
    refusal: SandboxError | None = None

    @property
    def repeated(self) -> bool:
        """Whether an earlier try may have begun it."""
        return self.begun or bool(self.unable)

    async def wait(self, why: SandboxError) -> None:
        """Pause before the next try. Raises `why` if the patience is over."""
        pause_s = self.backoff.pause_s(time.monotonic())
        if pause_s is None:
            raise why
        await asyncio.sleep(pause_s)


class WorkerClient(Protocol):
    """What a router needs of RemoteTenants. Close it."""

    def of(self, tenant: str) -> Sandboxes: ...

    async def close(self) -> None: ...


@dataclass
class _Opened:
    """A client, and the number of its running calls."""

    client: WorkerClient
    calls: int = 0
    last_used: float = 0.0


@dataclass
class _Known:
    """A worker that has answered for a target."""

    worker: Worker
    fresh_until: float


class Router:
    """Close it, or use it as an async context manager."""

    def __init__(
        self,
        directory: Directory,
        connect: Callable[[str], WorkerClient],
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        """`connect` makes the client for a worker's url."""
        self._metrics = metrics
        self._directory = directory
        self._connect = connect
        self._patience_s = patience_s
        self._chance = random.Random()
        self._clock = clock
        self._opened: dict[str, _Opened] = {}
        """By url. Unused ones are closed, since their workers may be gone."""
        self._closing: TaskSet[None] = TaskSet()
        self._silent_until = 0.0
        self._known: OrderedDict[tuple[str, Target], _Known] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Router to {len(self._opened)} workers>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._closing.stop(after_s=_CLOSE_S)
        opened, self._opened = self._opened, {}
        for each in opened.values():
            await each.client.close()

    def backoff(self) -> Backoff:
        """The pauses of one call."""
        return Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, self._patience_s)

    @contextlib.contextmanager
    def client(self, worker: Worker) -> Iterator[WorkerClient]:
        """A client for a worker, kept open until the context exits."""
        opened = self._opened.get(worker.url)
        if opened is None:
            self._close_unused()
            opened = self._opened[worker.url] = _Opened(self._connect(worker.url))
        opened.calls += 1
        try:
            yield opened.client
        finally:
            opened.calls -= 1
            opened.last_used = self._clock()

    async def ask(
        self, worker: Worker, tenant: str, operation: Operation[Req, Ans], request: Req
    ) -> Ans:
        """The answer of this worker, whatever it has."""
        with self.client(worker) as client:
            return await client.of(tenant).call(operation, request)

    def _close_unused(self) -> None:
        now = self._clock()
        for url, each in list(self._opened.items()):
            if not each.calls and now - each.last_used > _UNUSED_S:
                del self._opened[url]
                self._closing.start(each.client.close)

    async def route(
        self,
        attempt: Attempt,
        call: Call[_Answer],
        *,
        resendable: Callable[[], bool] = lambda: True,
        until: contextlib.AsyncExitStack | None = None,
    ) -> _Answer:
        """The answer of the worker that has the target's session. `resendable`: whether the whole
        request can be sent again. `until`: keeps the client open for an answer that is streamed."""
        while True:
            worker = await self.worker_of(attempt)
            try:
                with contextlib.ExitStack() as used:
                    client = (until or used).enter_context(self.client(worker))
                    answer = await call(client.of(attempt.tenant), attempt.target)
            except SandboxError as exc:
                await self.after(exc, worker, attempt, resendable=resendable())
            else:
                self._remember(attempt, worker)
                return answer

    async def after(
        self, exc: SandboxError, worker: Worker, attempt: Attempt, *, resendable: bool = True
    ) -> None:
        """Handle a failed try: return if the call should be retried, else raise the error."""
        self._doubt(attempt)
        if isinstance(exc, Unreachable | Misdirected | RuntimeUnavailable | Capacity):
            away = isinstance(exc, Unreachable)
            self._metrics.worker_failed("unreachable" if away else exc.code)
        if not resendable:
            raise exc
        if isinstance(exc, Unreachable):
            attempt.begun |= exc.may_have_arrived
            if attempt.begun and not attempt.repeatable:
                raise exc
            await attempt.wait(exc)
        elif isinstance(exc, Misdirected):
            await attempt.wait(
                RuntimeUnavailable(f"worker {worker.id} no longer has {_named(attempt)}; try again")
            )
        elif isinstance(exc, RuntimeUnavailable):
            attempt.unable.add(worker.id)
            await attempt.wait(exc)
        elif isinstance(exc, Capacity) and attempt.taken_over:
            attempt.full.add(worker.id)
        elif isinstance(exc, Capacity) and attempt.creates:
            attempt.full.add(worker.id)
            attempt.refusal = exc
        else:
            raise exc

    async def worker_of(self, attempt: Attempt) -> Worker:
        """The worker for the next try. Raises SessionLost, SessionNotFound, Capacity, and
        RuntimeUnavailable when patience is over."""
        while True:
            try:
                return await self._choose(attempt)
            except RuntimeUnavailable as exc:
                await attempt.wait(exc)

    async def _choose(self, attempt: Attempt) -> Worker:
        where = await self._locate(attempt)
        attempt.taken_over = False
        if where.alive and where.presence != Presence.GONE:
            if where.presence == Presence.HERE and where.worker is not None:
                return where.worker
            assert where.record is not None
            raise RuntimeUnavailable(
                f"worker {where.record.worker} has thread {where.record.thread_id!r} and is away;"
                " retry in 2 s",
                retry_after_s=2,
            )
        if where.alive and where.record is not None and where.record.movable:
            return await self._taking_over(where.record, attempt)
        if where.record is None and attempt.pinned:
            raise SessionLost(
                f"the session of {_named(attempt)} and its files were lost during this call; a call"
                " with its thread_id starts a new one, from its last checkpoint if it persists"
            )
        if not attempt.creates or (attempt.target and attempt.target.session_id):
            assert attempt.target is not None
            raise error_for(where.record, attempt.target)
        attempt.near = None if where.record is None else where.record.worker
        if attempt.as_before and (bound := await self.bound_to(where.record)):
            attempt.only = frozenset({bound})
        return await self._place(attempt)

    async def _taking_over(self, record: Record, attempt: Attempt) -> Worker:
        """A worker that can take over a session whose own is gone. It knows whether the box is
        still there, and tells the caller if not."""
        workers = [
            worker
            for worker in await self._directory.workers()
            if record.movable in worker.providers
        ]
        attempt.taken_over = True
        if (worker := self._placed(workers, attempt)) is not None:
            return worker
        attempt.full.clear()
        raise RuntimeUnavailable(
            f"worker {record.worker}, which had thread {record.thread_id!r}, is gone, and no other"
            " has room to take it over; retry in 2 s",
            retry_after_s=2,
        )

    async def bound_to(self, before: Record | None) -> str | None:
        """The worker that has the volumes of a thread's last session, if it had any."""
        if before is None or before.status == Status.CLEANED:
            return None
        asked = (await self._directory.with_asked(before)).asked
        return before.worker if asked.get("volumes") else None

    async def _locate(self, attempt: Attempt) -> Location:
        target = attempt.target
        if target is None:
            return Location()
        known = self._known.get((attempt.tenant, target))
        if known is None or attempt.only is not None:
            # The cached worker may have ended the session: it would make a new one, wherever it is.
            where = await self._directory.locate(attempt.tenant, target)
        elif time.monotonic() < known.fresh_until:
            return Location(worker=known.worker, presence=Presence.HERE, assumed=True)
        else:
            where = await self._located(attempt.tenant, target, known.worker)
        record = where.record
        if attempt.begun and record is not None and record.status in (Status.LIVE, Status.LOST):
            attempt.target = Target(session_id=record.session_id)
            attempt.pinned = True
        return where

    async def _located(self, tenant: str, target: Target, known: Worker) -> Location:
        """Ask the registry; if it does not answer, use the cached worker, which knows itself
        whether it may still serve."""
        if time.monotonic() >= self._silent_until:
            try:
                async with asyncio.timeout(_REGISTRY_S):
                    return await self._directory.locate(tenant, target)
            except (RuntimeUnavailable, TimeoutError):
                self._silent_until = time.monotonic() + _SILENT_S
        return Location(worker=known, presence=Presence.HERE, assumed=True)

    async def _place(self, attempt: Attempt) -> Worker:
        workers = self._offering(await self._directory.workers(), attempt.provider)
        if attempt.only is not None:
            workers = [worker for worker in workers if worker.id in attempt.only]
        if worker := self._placed(workers, attempt):
            return worker
        if attempt.refusal is not None:
            refusal, attempt.refusal = attempt.refusal, None
            attempt.full.clear()
            raise refusal
        here = sum(self._directory.presence(w) == Presence.HERE for w in workers)
        if here:
            raise Capacity(
                f"at capacity: none of {here} workers takes new threads; retry in 5 s",
                retry_after_s=5,
            )
        if attempt.only is not None:
            raise RuntimeUnavailable(
                f"worker {', '.join(sorted(attempt.only))} has what the session begins with, and is"
                " not serving; retry in 2 s",
                retry_after_s=2,
            )
        raise RuntimeUnavailable(
            f"none of the {len(workers)} registered workers is serving; start one, or retry in 2 s",
            retry_after_s=2,
        )

    def _offering(self, workers: Sequence[Worker], provider: str | None) -> Sequence[Worker]:
        """The workers that have the provider. Raises InvalidRequest if none has it that is here or
        may come back."""
        if provider is None:
            return workers
        able = [worker for worker in workers if provider in worker.providers]
        gone = Presence.GONE
        expected = [worker for worker in workers if self._directory.presence(worker) != gone]
        if expected and not any(worker in able for worker in expected):
            there = {name: None for worker in expected for name in worker.providers}
            raise no_provider(provider, there=list(there))
        return able

    def _placed(self, workers: Sequence[Worker], attempt: Attempt) -> Worker | None:
        """A worker with room, preferably one that was available. If all look full by their last
        heartbeat, try one anyway: it has the current figures."""
        if attempt.near is not None and attempt.near not in attempt.full | attempt.unable:
            last = [worker for worker in workers if worker.id == attempt.near]
            if worker := place(last, chance=self._chance):
                return worker
        for avoid in (attempt.full | attempt.unable, attempt.full):
            if worker := place(workers, avoid=avoid, chance=self._chance):
                return worker
        if attempt.refusal is not None:
            return None
        return place(workers, avoid=attempt.full, chance=self._chance, full_too=True)

    def _remember(self, attempt: Attempt, worker: Worker) -> None:
        if attempt.target is None:
            return
        key = (attempt.tenant, attempt.target)
        self._known[key] = _Known(worker, time.monotonic() + _FRESH_S)
        self._known.move_to_end(key)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def _doubt(self, attempt: Attempt) -> None:
        """Expire the cached worker, so that the next try looks it up."""
        if attempt.target and (known := self._known.get((attempt.tenant, attempt.target))):
            known.fresh_until = 0.0


def _named(attempt: Attempt) -> str:
    """What a call is about, as its caller named it."""
    target = attempt.target
    if target is None:
        return "the new thread"
    return f"thread {target.thread_id!r}" if target.thread_id else f"session {target.session_id!r}"
