"""The worker: owns the boxes of one machine and looks after them for as long as it runs.

On start it takes over what a worker before it has left: sessions and warm boxes with their clocks.
On stop it leaves sessions to the next one, unless it is told to destroy them. Warm boxes go.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import (
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
)
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, Health
from sandbox_server import __version__
from sandbox_server.pool import Pool, PoolSettings
from sandbox_server.runtime.base import Box, BoxSpec, Runtime
from sandbox_server.runtime.warden import WardenClient
from sandbox_server.runtime.warden.answers import BoxState, Fenced
from sandbox_server.runtime.warden.zipapp import warden_version
from sandbox_server.sessions.adoption import Discard, Resume, Warm, decide
from sandbox_server.sessions.lease import Lease, Load
from sandbox_server.sessions.ledger import Entry
from sandbox_server.sessions.live import LiveSession, record_from_state
from sandbox_server.sessions.registry import Record, Registry
from sandbox_server.sessions.table import SessionTable
from sandbox_server.tasks import TaskSet

log = structlog.get_logger()

TICK_S = 5.0
ADOPT_S = 15.0
FENCED_S = 1.0
TIDY_EVERY_S = 1800.0
"""How often what nobody will ask for is dropped from the registry."""
HALF_MADE_S = 600.0
"""A session that the registry knows for longer than this, and this worker does not, has no box."""
WATCHED = 64
"""Of how many commands at most that a box says are running the end is waited for."""
AT_ONCE = 16
"""How many boxes are taken over or let go of at a time: an engine asked for more gets slower."""


class Worker:
    """Use as an async context manager."""

    def __init__(
        self,
        runtime: Runtime,
        spec: BoxSpec,
        registry: Registry,
        lease: Lease,
        *,
        role: str = "standalone",
        pool: PoolSettings,
        environments: dict[str, str],
        idle_timeout_s: float,
        capacity: int,
        destroy_on_exit: bool = False,
        tick_s: float = TICK_S,
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._capacity = capacity
        self._lease = lease
        self._role = role
        self._destroy = destroy_on_exit
        self._tick_s = tick_s
        self._began = time.monotonic()
        self._stack = contextlib.AsyncExitStack()
        self._looking_at: set[str] = set()
        self._looks: TaskSet[None] = TaskSet()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._registry = registry
        self._idle_timeout_s = idle_timeout_s
        self.table = SessionTable(
            registry, lease, self, idle_timeout_s=idle_timeout_s, capacity=capacity
        )
        starts = asyncio.Semaphore(pool.concurrency)

        def pool_of(spec: BoxSpec, settings: PoolSettings) -> Pool:
            return Pool(
                runtime,
                spec,
                settings,
                connect=self._connect,
                room=lambda: capacity - len(self.table),
                notes=registry.ledger,
                slots=starts,
            )

        self._pool = pool_of(spec, pool)
        # Boxes of other environments are made when they are asked for, in the same way.
        none_warm = replace(pool, size=0, min_size=0, max_size=0)
        self._pools = {
            name: pool_of(replace(spec, image=image), none_warm)
            for name, image in environments.items()
        }

    async def __aenter__(self) -> Worker:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._stack.push_async_callback(self._let_go)
        await self._adopt({record.box_id: record for record in await self._known()})
        for pool in self._pools.values():
            await self._stack.enter_async_context(pool)
        await self._pool.__aenter__()
        self._stack.push_async_callback(self._close_pool)
        self._stack.push_async_callback(self._looks.stop)
        watching = asyncio.create_task(self._watch())
        self._stack.push_async_callback(_cancelled, watching)

    async def _known(self) -> list[Record]:
        """The sessions that the registry knows as this worker's. Its hiccups are waited out."""
        deadline = time.monotonic() + ADOPT_S
        while True:
            try:
                return await self._registry.live()
            except RuntimeUnavailable as exc:
                if time.monotonic() > deadline:
                    raise
                log.warning("registry.silent", why=exc.message)
            await asyncio.sleep(0.2)

    async def _close_pool(self) -> None:
        """Nothing is in a warm box that a next worker could not make anew."""
        await self._pool.close(destroy=True)

    async def _let_go(self) -> None:
        async def let_go(session: LiveSession) -> None:
            async with self._slots:
                if self._destroy and not await _is_fenced(session):
                    await self.table.cleanup(session)
                else:
                    await session.let_go()

        await asyncio.gather(*map(let_go, self.table.sessions()))

    def _connect(self, box: Box) -> WardenClient:
        return WardenClient(box, epoch=self._lease.epoch, deadman_s=self._spec.deadman_s)

    async def claim(
        self, environment: str | None, state: Mapping[str, Any]
    ) -> tuple[Box, WardenClient]:
        """A box for a new session: a warm one, or a new one of another environment."""
        if environment is None:
            warm = await self._pool.claim(state)
            return warm.box, warm.warden
        pool = self._pools.get(environment)
        if pool is None:
            known = ", ".join(sorted(self._pools)) or "none"
            raise InvalidRequest(
                f"unknown environment {environment!r}; configured in SANDBOX_ENVIRONMENTS: {known}"
                if self._runtime.has_images
                else f"environment {environment!r}: {self._runtime.name} boxes have the programs of"
                " the server's machine, not those of an image; leave it out, or use docker"
            )
        made = await pool.claim(state)
        return made.box, made.warden

    # Adoption

    async def _adopt(self, known: dict[str, Record]) -> None:
        """known: the sessions that were live when the worker before this one ended, by box, as far
        as the registry knows them."""
        boxes = await self._runtime.boxes(self._spec.owner)
        entries = self._registry.ledger.entries()
        await asyncio.gather(
            *(self._take_over(box, entries.get(box.id), known.get(box.id)) for box in boxes)
        )
        begun = {box_id: self._record(box_id, e.state) for box_id, e in entries.items() if e.begun}
        for box_id, record in {**begun, **known}.items():
            if box_id not in {box.id for box in boxes}:
                await self.table.abandon(record)
        self._registry.ledger.keep_only(box.id for box in boxes)
        if boxes or known:
            log.info("worker.adopted", boxes=len(boxes), sessions=len(self.table), of=len(known))

    async def _take_over(self, box: Box, entry: Entry | None, known: Record | None) -> None:
        """A box is a session's, or warm, or it goes. A session that cannot be reached is not lost,
        and whatever goes wrong with one box costs no other."""
        try:
            await self._decide(box, entry, known)
        except Exception:
            log.exception("box.adoption_failed", box=box.id)

    async def _decide(self, box: Box, entry: Entry | None, known: Record | None) -> None:
        warden = self._connect(box)
        told, why = await self._asked(warden)
        becomes = decide(
            entry, known, told, build=warden_version(), idle_timeout_s=self._idle_timeout_s
        )
        match becomes:
            case Warm():
                self._pool.adopt(box, warden)
            case Resume():
                if why:
                    log.warning("session.unreachable", box=box.id, why=why)
                await self._resume(box, warden, becomes, told)
            case Discard():
                log.warning("box.not_adopted", box=box.id, why=why or becomes.why)
                if known is not None:
                    await self.table.abandon(known)
                elif entry is not None and entry.begun:
                    await self.table.abandon(self._record(box.id, entry.state))
                await self.table.discard(box, warden)

    async def _asked(self, warden: WardenClient) -> tuple[BoxState | None, str]:
        """What a box says of itself, or None and why it says nothing."""
        try:
            async with self._slots, asyncio.timeout(ADOPT_S):
                return await warden.state(), ""
        except TimeoutError:
            return None, f"no answer within {ADOPT_S:g} s"
        except SandboxError as exc:
            return None, exc.message
        except (
            Exception
        ) as exc:  # Whatever a hostile box may trigger, the others are not its fault.
            log.exception("box.state_broke")
            return None, repr(exc)

    async def _resume(
        self, box: Box, warden: WardenClient, becomes: Resume, told: BoxState | None
    ) -> None:
        state, now = becomes.state, time.monotonic()
        record = self._record(box.id, state)
        session = LiveSession(
            record,
            box,
            warden,
            idle_timeout_s=state["idle_timeout_s"],
            last_used=now,
            environment=state["environment"],
            met=becomes.met,
        )
        if told is None:
            session.may_run_until = now + MAX_TIMEOUT_S
        else:
            session.last_used -= min(told.idle_s, max(time.time() - record.created_at, 0.0))
        await self.table.adopt(session)
        if session.ended is None and told is not None:
            running = [command.command_id for command in told.commands if command.running]
            for command_id in running[-WATCHED:]:
                session.watch(command_id, clock=time.monotonic, for_s=MAX_TIMEOUT_S)

    def _record(self, box_id: str, state: Mapping[str, Any] | None) -> Record:
        """Of a session of a server before this one, not yet vouched for."""
        return record_from_state(state or {}, box_id, worker=self._lease.worker, epoch=-1)

    # Looking after sessions

    async def _watch(self) -> None:
        """Keep the dead-man's switches quiet, end what is idle, notice what is gone, and tell the
        registry what it lacks. Every session is looked at by itself: one whose box hangs holds up
        nobody else, and nothing that goes wrong with one ends the watch."""
        ping_every_s = max(self._spec.deadman_s / 4, self._tick_s)
        next_ping = time.monotonic() + ping_every_s
        next_tidy = time.monotonic()
        while True:
            await asyncio.sleep(self._tick_s)
            now = time.monotonic()
            pinging = now >= next_ping
            if pinging:
                next_ping = now + ping_every_s
            for session in self.table.sessions():
                if pinging or session.is_idle(now):
                    self._look(session.record.session_id, partial(self._look_at, session))
            if self.table.behind:
                self._look("registry", self.table.vouch)
            if now >= next_tidy:
                next_tidy = now + TIDY_EVERY_S
                self._look("tidy", self._tidy)

    def _look(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in the background, unless it is being done already."""
        if name in self._looking_at:
            return
        self._looking_at.add(name)

        async def guarded() -> None:
            try:
                await work()
            except RuntimeUnavailable as exc:
                log.warning("watch.unavailable", what=name, why=exc.message)
            except Exception:
                log.exception("watch.failed", what=name)
            finally:
                self._looking_at.discard(name)

        self._looks.start(guarded)

    async def _tidy(self) -> None:
        """Also end what Redis was told of too late, after it had been frozen."""
        await self._registry.tidy()
        here = {session.record.session_id for session in self.table.sessions()}
        for record in await self._registry.live():
            if record.session_id not in here and time.time() - record.created_at > HALF_MADE_S:
                await self.table.abandon(record)

    async def _look_at(self, session: LiveSession) -> None:
        try:
            if session.is_idle(time.monotonic()):
                await self.table.expire(session)
            else:
                await session.warden.ping()
        except SessionLost:
            await self.table.lose(session)

    def load(self) -> Load:
        return Load(sessions=len(self.table), warm=self._pool.warm)

    def health(self) -> Health:
        failure = self._pool.failure
        full = self.table.room == 0
        checks = {
            "runtime": failure or "ok",
            "capacity": "full" if full else "ok",
        }
        broken = {name: pool.failure for name, pool in self._pools.items() if pool.failure}
        checks |= {f"environment {name}": why for name, why in broken.items() if why}
        return Health(
            status="unhealthy" if failure and not self._pool.warm else
            "degraded" if failure or full or broken else "healthy",
            role=self._role,
            worker_id=self._spec.owner,
            runtime=self._runtime.name,
            pool_size=self._pool.warm,
            active_sessions=len(self.table),
            capacity=self._capacity,
            version=__version__,
            uptime_s=round(time.monotonic() - self._began, 3),
            checks=checks,
        )  # fmt: skip


async def _is_fenced(session: LiveSession) -> bool:
    """Whether another process has taken the box over, which is its own to destroy then."""
    try:
        async with asyncio.timeout(FENCED_S):
            await session.warden.ping()
    except Fenced:
        return True
    except (SandboxError, TimeoutError):
        pass
    return False


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
