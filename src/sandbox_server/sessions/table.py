"""The table of live sessions: getting, making, losing and ending them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import structlog

from sandbox_sdk.protocol import calling_key
from sandbox_sdk.protocol.errors import (
    Capacity,
    Conflict,
    InvalidRequest,
    Misdirected,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
    size_text,
)
from sandbox_sdk.protocol.models import EgressRules, OpenPorts, SessionState, Target
from sandbox_server.network.egress import Subject
from sandbox_server.network.modes import narrowed
from sandbox_server.network.networks import Networks
from sandbox_server.runtime.agent import BoxState
from sandbox_server.sessions.background import Background, SessionQuota
from sandbox_server.sessions.counting import Usage
from sandbox_server.sessions.keeping import Keeper, source_of
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.live import Key, LiveSession, asked_with
from sandbox_server.sessions.making import SessionMaker, SessionOptions
from sandbox_server.sessions.notes import SessionNotes
from sandbox_server.sessions.previews import AllPorts, SessionPreviews
from sandbox_server.sessions.registry import Record, Registry, Status, error_for
from sandbox_server.sessions.reporter import BATCH, Reporter
from sandbox_server.sessions.rules import SessionTerms
from sandbox_server.sessions.share import Occupancy
from sandbox_server.sessions.volumes import require_free

log = structlog.get_logger()

AsBefore = Callable[[Record | None], SessionOptions]
"""The options of a session that nobody asked for, by the one that its thread had before."""
TakeOver = Callable[[Record], Awaitable[None]]
"""Enters a session in the table whose worker is gone, if its box is there. Raises Capacity,
Misdirected, RuntimeUnavailable."""
END_AT_ONCE = 16
KEEP_BEFORE_S = 15.0
"""Of the time that a box has which somebody else ends: for its last checkpoint."""
FULL_S = 5.0
"""Retry-after of a caller that found no room."""


class SessionTable:
    """At most one live session per thread. Every wait happens under the thread's own lock."""

    def __init__(
        self,
        registry: Registry,
        lease: Lease,
        maker: SessionMaker,
        occupancy: Occupancy,
        notes: SessionNotes | None = None,
        keeper: Keeper | None = None,
        networks: Networks | None = None,
        quota: SessionQuota | None = None,
        usage: Usage | None = None,
    ) -> None:
        """networks: without, connections of boxes are not served. usage: without, nobody counts
        what sessions use."""
        self._quota = quota or SessionQuota()
        self.background = Background(self._quota, maker.keep)
        self.usage = usage
        self._networks = networks
        self.notes = notes or SessionNotes()
        self.keeper = keeper or Keeper(None)
        self._registry = registry
        self._lease = lease
        self._maker = maker
        self._occupancy = occupancy
        self._live: dict[Key, LiveSession] = {}
        self._locks: dict[Key, tuple[asyncio.Lock, int]] = {}
        self._making_memory = 0
        self._reporter = Reporter(registry, lease)
        self.take_over: TakeOver | None = None
        """Where sessions of other workers can be taken over."""

    def __repr__(self) -> str:
        return f"<SessionTable {len(self._live)} live of {self._occupancy.capacity}>"

    def __len__(self) -> int:
        return len(self._live)

    @property
    def room(self) -> int:
        """How many more sessions can be created."""
        return self._occupancy.free

    @property
    def leaves(self) -> bool:
        """Whether the worker stops for good, with no successor."""
        return self._lease.leaves

    @property
    def behind(self) -> bool:
        """Whether the registry is missing an update from this table."""
        return self._reporter.is_behind(self._live.values())

    def made_by(self) -> dict[Key, str]:
        """The id of the API key that made it, by the tenant and thread of each session."""
        return {key: session.made_by for key, session in self._live.items()}

    def sessions(self) -> list[LiveSession]:
        return list(self._live.values())

    async def open(
        self, tenant: str, thread_id: str, options: SessionOptions | AsBefore | None = None
    ) -> tuple[LiveSession, SessionState]:
        """The live session of a thread, created if there is none.

        Raises Capacity, RuntimeUnavailable; InvalidRequest for options that cannot be had.
        """
        key = (tenant, thread_id)
        async with self._locked(key):
            self._lease.check()
            session = self._live.get(key)
            if session is not None and session.is_over:
                await self._expire(session)
            if session is not None and await self._is_there(session):
                return session, "live"
            return await self._begin(key, options or SessionOptions())

    def live(self, tenant: str, thread_id: str) -> LiveSession | None:
        """The live session of a thread, if it has one."""
        return self._live.get((tenant, thread_id))

    async def find(self, tenant: str, target: Target) -> LiveSession:
        """The target's live session.

        Raises SessionNotFound, SessionLost if it was lost, Misdirected if another worker has it.
        """
        self._lease.check()
        record = await self._record(tenant, target)
        session = None
        if record is not None:
            session = self._of(record) or await self._taken_over(record)
        if session is None:
            raise await self._registry.explain(record, target)
        if session.is_over:
            await self.expire(session)
        if not await self._is_ours(session):
            raise _error_of(session)
        return session

    def previews_of(self, session_id: str) -> SessionPreviews | None:
        """Those of a session, whoever it belongs to. Raises RuntimeUnavailable."""
        return self._registry.previews.of(session_id)

    async def keep_previews(self, session: LiveSession, previews: SessionPreviews) -> None:
        """Raises RuntimeUnavailable, and the error of a session that has ended."""
        if session.ended is not None:
            raise _error_of(session)
        self._registry.previews.keep(previews)
        await self._registry.publish(previews)

    async def lose(self, session: LiveSession) -> SandboxError:
        """End a session whose box is gone; returns the error for its callers.

        SessionLost, unless the session was ended on purpose meanwhile. The next call with its
        thread_id starts a new session.
        """
        await self._end(session, Status.LOST)
        return _error_of(session)

    async def cleanup(self, session: LiveSession) -> None:
        async with self._locked(session.key):
            await self._end(session, Status.CLEANED)
            await self.keeper.forget(session)

    async def restore(self, tenant: str, thread_id: str, options: SessionOptions) -> LiveSession:
        """A new session of a thread, in the place of its live one, which ends once the new one is
        there."""
        key = (tenant, thread_id)
        async with self._locked(key):
            self._lease.check()
            old = self._live.get(key)
            if old is not None and not await self._is_ours(old):
                old = None
            session, _ = await self._begin(key, options, replacing=old)
            if old is not None:
                await self._end(old, Status.CLEANED)
            return session

    async def keep(self, session: LiveSession) -> None:
        """An automatic checkpoint that is due."""
        if session.ended is None and await self._may_end(session):
            await self.keeper.keep(session)

    async def expire(self, session: LiveSession) -> None:
        """End a session unless it was used meanwhile. If a command may still run whose end this
        process did not see, the box is asked first."""
        async with self._locked(session.key):
            if self._live.get(session.key) is not session or not await self._may_end(session):
                return
            now = time.monotonic()
            if session.is_over or (session.paused_at is not None and session.is_idle(now)):
                await self._expire(session)
                return
            if session.busy or session.paused_at is not None:
                return
            if time.monotonic() - session.may_run_until <= session.idle_timeout_s:
                try:
                    state = await session.agent.state()
                except RuntimeUnavailable:
                    return
                except SessionLost:
                    await self._end(session, Status.LOST)
                    return
                session.last_used = session.used_at(state.idle_s, now=time.monotonic())
                await self.watch_running(session, state)
            if not session.is_idle(time.monotonic()):
                return
            if session.keep.persist and not await self._kept(session):
                return
            if session.busy or not session.is_idle(time.monotonic()):
                return  # Used while it was kept.
            await self._forget(session)

    async def leave_box(self, session: LiveSession) -> None:
        """Keep a session whose box somebody else is ending, and end it, so that its thread goes on
        in another box. Commands that run have until shortly before the box ends."""
        async with self._locked(session.key):
            if self._live.get(session.key) is not session or not await self._may_end(session):
                return
            if _can_wait(session) or not await self._kept(session):
                return
            if not _can_wait(session):  # Not used while it was kept.
                await self._end(session, Status.EXPIRED, told_as="evicted")

    async def _expire(self, session: LiveSession) -> None:
        """End a session whose lifetime is over, whatever runs in it, or pause it if that was asked.
        One that is to go on later and cannot be kept now lasts until it can."""
        if session.pauses_at_end and session.paused_at is None:
            with contextlib.suppress(Conflict, InvalidRequest):
                session.end_at = None
                await self._pause(session)
                return
        if not session.keep.persist or await self._kept(session):
            await self._forget(session)

    async def _forget(self, session: LiveSession) -> None:
        await self._end(session, Status.EXPIRED)
        if not session.keep.persist:
            await self.keeper.forget_points(session)

    async def pause(self, session: LiveSession) -> None:
        """Stop what runs in a session until it is used again. That it is paused is written down
        first, so that whoever finds it later knows. Raises Conflict, InvalidRequest."""
        async with self._locked(session.key):
            if session.ended is not None:
                raise _error_of(session)
            if session.paused_at is None:
                await self._pause(session)

    async def _pause(self, session: LiveSession) -> None:
        await session.meet()
        session.agent.require("pause", "pausing a sandbox")
        await self._count(session)
        session.paused_at = time.time()
        self._maker.keep(session)
        try:
            await session.agent.pause()
        except Conflict:
            session.paused_at = None
            self._maker.keep(session)
            raise
        self.notes.paused(session, is_paused=True)
        await session.box.reclaim()

    async def unpause(self, session: LiveSession) -> None:
        """Let what runs in a session go on."""
        async with self._locked(session.key):
            if session.paused_at is None or session.ended is not None:
                return
            await session.agent.unpause()
            await self._count(session)
            session.paused_at = None
            session.last_used = time.monotonic()
            if (lasts_s := session.lasts_after_pause_s) is not None and session.end_at is None:
                session.end_at = time.time() + lasts_s
                self.notes.due.set()
            self._maker.keep(session)
            self.notes.paused(session, is_paused=False)

    async def _count(self, session: LiveSession) -> None:
        if self.usage is not None:
            await self.usage.read([session])

    async def set_end(
        self, session: LiveSession, end_at: float | None, *, only_later: bool = False
    ) -> None:
        """Say when a session ends, used or not; None: when it is idle. only_later: not before it
        would have. Raises RuntimeUnavailable."""
        if only_later and end_at is not None:
            end_at = None if session.end_at is None else max(session.end_at, end_at)
        session.end_at = end_at
        self._maker.keep(session)
        self.notes.due.set()

    async def set_egress(self, session: LiveSession, rules: EgressRules | None) -> None:
        """What a session may not reach from now on; its thread's next one, too. Raises
        InvalidRequest, RuntimeUnavailable."""
        async with self._locked(session.key):
            if session.ended is not None:
                raise _error_of(session)
            session.network = narrowed(session.network, rules)
            if session.egress is not None:
                session.egress.use(session.network.rules)
            told = None if rules is None else rules.model_dump(exclude_defaults=True)
            asked = asked_with(session.record.asked, told)
            session.record = replace(session.record, asked=asked)
            log.info("session.egress", thread=session.record.thread_id, **(told or {}))
            self._maker.keep(session)
            await self._registry.restore(session.record)

    async def _kept(self, session: LiveSession) -> bool:
        """Whether a session that is to go on later has a checkpoint of how it is now."""
        if time.monotonic() < session.keep_again_at:
            return False
        try:
            return await self.keeper.keep(session)
        except SessionLost:
            await self._end(session, Status.LOST)
            return False

    async def adopt(self, session: LiveSession) -> None:
        """Take over a session of an earlier process, or end it if its thread got a new session
        meanwhile, here or elsewhere. If the registry is unavailable, the latter is checked before
        first use."""
        other = self._live.get(session.key)
        newer = other is None or other.record.generation < session.record.generation
        if newer:
            self._enter(session)
        self.notes.began(session)
        self.notes.metrics.session_began("adopted")
        if other is not None:  # The server was killed as one took the place of the other.
            await self._end_superseded([other if newer else session])
        if newer:
            with contextlib.suppress(RuntimeUnavailable):
                await self._is_ours(session)

    async def watch_running(self, session: LiveSession, state: BoxState) -> None:
        """Count what a box reports as running, which this process did not begin or no longer
        watches: as use, and in the limits of its tenant."""
        self.notes.watch_running(session, state)
        await self.background.adopt(session, state)

    async def _taken_over(self, record: Record) -> LiveSession | None:
        """The session of a worker that is gone, if this one can have it."""
        if record.status != Status.LIVE or not record.movable:
            return None
        key = (record.tenant, record.thread_id)
        async with self._locked(key):
            if key not in self._live:
                await self._take_over(record)
            return self._of(record)

    async def _take_over(self, record: Record) -> None:
        if self.take_over is not None and record.worker != self._lease.worker:
            await self.take_over(record)

    def _of(self, record: Record) -> LiveSession | None:
        found = self._live.get((record.tenant, record.thread_id))
        return found if found and found.record.session_id == record.session_id else None

    @contextlib.asynccontextmanager
    async def taking(self, tenant: str, thread_id: str) -> AsyncIterator[bool]:
        """Have the lock of a thread whose session is taken over; whether it has none here."""
        async with self._locked((tenant, thread_id)):
            yield (tenant, thread_id) not in self._live

    async def abandon(self, record: Record) -> None:
        """Record as lost a session of an earlier process that has no box any more, unless another
        worker has both."""
        if await self._has_moved(record):
            return
        self.notes.ended(replace(record, status=Status.LOST))
        self.notes.metrics.session_ended(Status.LOST.value)
        await self._reporter.end(replace(record, status=Status.LOST))

    async def vouch(self) -> None:
        """After a gap in the lease: keep the sessions that are still ours, end those taken over,
        and report the ends that could not be reported before.

        Raises RuntimeUnavailable; what was done by then stays done.
        """
        unvouched = [s for s in self.sessions() if not self._reporter.has_vouched_for(s)]
        superseded: list[LiveSession] = []
        try:
            for start in range(0, len(unvouched), BATCH):
                superseded += await self._reporter.vouch(unvouched[start : start + BATCH])
        finally:
            await self._end_superseded(superseded)
        await self._reporter.report_ends()

    async def check_ours(self, session: LiveSession) -> None:
        """Give a session up whose box is another worker's by now."""
        if session.ended is None and await self._has_moved(session.record):
            await self._give_up(session)

    async def _has_moved(self, record: Record) -> bool:
        """Whether another worker has taken a session over. If the registry does not tell, it counts
        as ours: neither its record nor its box would be touched if it were not."""
        if self.take_over is None:
            return False
        try:
            return await self._registry.is_elsewhere(record)
        except RuntimeUnavailable:
            return False

    async def _is_ours(self, session: LiveSession) -> bool:
        """Whether no other worker took the session over. Raises RuntimeUnavailable if the registry
        has to be asked and does not answer."""
        if not self._reporter.has_vouched_for(session):
            await self._end_superseded(await self._reporter.vouch([session]))
        return session.ended is None

    async def _may_end(self, session: LiveSession) -> bool:
        """Whether the session is still ours: after a suspend another worker may have it."""
        try:
            self._lease.check()
            return await self._is_ours(session)
        except RuntimeUnavailable:
            return False

    async def _end_superseded(self, sessions: Sequence[LiveSession]) -> None:
        slots = asyncio.Semaphore(END_AT_ONCE)

        async def end(session: LiveSession) -> None:
            async with slots:
                record = session.record
                if await self._has_moved(record):
                    await self._give_up(session)
                    return
                log.warning("session.superseded", thread=record.thread_id, box=session.box.id)
                await self._end(session, Status.LOST, told_as="superseded")

        await asyncio.gather(*map(end, sessions))

    async def _record(self, tenant: str, target: Target) -> Record | None:
        if target.session_id is not None:
            return await self._registry.by_session(tenant, target.session_id)
        assert target.thread_id is not None
        live = self._live.get((tenant, target.thread_id))
        return live.record if live else await self._registry.newest(tenant, target.thread_id)

    async def _is_there(self, session: LiveSession) -> bool:
        if session.ended or not await self._is_ours(session):
            return False
        try:
            await session.meet()
        except SessionLost:
            await self._end(session, Status.LOST)
            return False
        return True

    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        """The latest session of a thread, on whatever worker, live or not."""
        return await self._registry.newest(tenant, thread_id)

    async def _begin(
        self, key: Key, wanted: SessionOptions | AsBefore, *, replacing: LiveSession | None = None
    ) -> tuple[LiveSession, SessionState]:
        if self.room <= 0 and replacing is None:
            capacity = self._occupancy.capacity
            raise Capacity(
                f"at capacity: {capacity} of {capacity} sessions; retry in {FULL_S:g} s",
                retry_after_s=FULL_S,
            )
        if self._lease.draining:
            raise Capacity(
                f"worker {self._lease.worker} is draining and takes no new sessions; retry in 1 s",
                retry_after_s=1,
            )
        # A thread named after its new session cannot have had an earlier one.
        named_here = isinstance(wanted, SessionOptions) and wanted.session_id == key[1]
        before = None if named_here else await self._registry.predecessor(*key)
        if before is not None and before.status == Status.LIVE and before.movable:
            await self._take_over(before)
            if (session := self._of(before)) is not None and await self._is_there(session):
                return session, "live"
            before = await self._registry.predecessor(*key)
        options = wanted if isinstance(wanted, SessionOptions) else wanted(before)
        if before is not None and options.origin is None:
            options = replace(options, origin=await self.keeper.resume(before))
        await require_free(self.sessions(), key, options.volumes)
        terms = self._maker.terms(options)
        # One that takes the place of another counts for whoever that did.
        made_by = calling_key.current() if replacing is None else replacing.made_by
        one_more = self._quota.one_more(key, made_by)
        async with contextlib.nullcontext() if replacing else one_more:
            with self._making(terms.limits["memory"]):
                session = await self._made(key, options, terms, before, made_by)
        if session.egress is not None:
            await session.egress.listening()
        again = before is not None and before.status != Status.CLEANED
        state: SessionState = "recreated" if again else "created"
        state = state if options.origin is None else options.origin.state
        self.notes.metrics.session_began(state)
        self.notes.opened(session, state)
        log.info("session.created", thread=key[1], tenant=key[0], box=session.box.id,
                 generation=session.record.generation)  # fmt: skip
        return session, state

    async def _made(
        self,
        key: Key,
        options: SessionOptions,
        terms: SessionTerms,
        before: Record | None,
        made_by: str,
    ) -> LiveSession:
        session = await self._maker.make(key, options, terms, before, made_by)
        try:
            if session.keep.history:
                self.keeper.points.require(source_of(session))
            await self._reporter.begin(session.record, before=before)
        except BaseException:  # Not in the table: nothing else would destroy the box.
            await self._maker.finish(self._maker.discard(session.box, session.agent))
            raise
        self._enter(session)
        self.notes.began(session)
        if session.end_at is not None:
            self.notes.due.set()
        if session.ports is not None:
            await self._open_ports(session, session.ports)
        return session

    async def _open_ports(self, session: LiveSession, ports: OpenPorts) -> None:
        """Show all ports of a new session. Raises RuntimeUnavailable, without the session then."""
        record, shown = session.record, AllPorts(**ports.model_dump())
        try:
            await self.keep_previews(
                session,
                SessionPreviews(
                    tenant=record.tenant, session_id=record.session_id, all_ports=shown
                ),
            )
        except BaseException:
            await self._maker.finish(self._end(session, Status.LOST))
            raise

    async def _end(self, session: LiveSession, status: Status, *, told_as: str = "") -> None:
        """told_as: the reason for metrics, unless it is the status."""
        if session.ended is None:
            session.ended = status
            self.notes.metrics.session_ended(told_as or status.value)
            idle_s = round(session.idle_s(time.monotonic()))
            log.info("session.ended", thread=session.record.thread_id, reason=status.value,
                     box=session.box.id, idle_s=idle_s)  # fmt: skip
            self.notes.ended(replace(session.record, status=status))
            try:
                await self._reporter.end(replace(session.record, status=status))
            finally:
                self._leave(session)
        await self._maker.finish(self._end_box(session))

    async def _give_up(self, session: LiveSession) -> None:
        """Leave a session to the worker that has taken it over, with its box."""
        log.warning("session.moved", thread=session.record.thread_id, box=session.box.id)
        session.ended, session.moved = Status.LOST, True
        self._leave(session)
        if self.usage is not None:
            self.usage.forget(session)
        self.notes.metrics.session_ended("moved")
        await self._maker.finish(self._let_go(session))

    async def _let_go(self, session: LiveSession) -> None:
        await session.let_go()
        await self._maker.give_up(session.box, session.agent)

    async def _end_box(self, session: LiveSession) -> None:
        if self.usage is not None:
            await self.usage.ended(session)
        await session.let_go()
        await self._maker.discard(session.box, session.agent)

    @contextlib.contextmanager
    def _making(self, memory: int) -> Iterator[None]:
        """Count a session that is being made. Raises Capacity if its memory is not left."""
        left = self._occupancy.memory_left
        if left is not None and memory > left:
            raise Capacity(
                f"at capacity: {size_text(left)} of {size_text(self._occupancy.memory or 0)} of"
                f" memory is left for sessions, and this one asks for {size_text(memory)}; retry in"
                f" {FULL_S:g} s, or ask for less with limits.memory",
                retry_after_s=FULL_S,
            )
        self._occupancy.making += 1
        self._making_memory += memory
        self.recount()
        try:
            yield
        finally:
            self._occupancy.making -= 1
            self._making_memory -= memory
            self.recount()

    def _enter(self, session: LiveSession) -> None:
        self._live[session.key] = session
        self.recount()
        if self._networks is not None and session.network.proxied:
            record = session.record
            subject = Subject(record.tenant, record.thread_id, record.session_id)
            session.egress = self._networks.serve(
                session.agent,
                session.network,
                subject,
                meet=session.meet,
                used_today=0 if self.usage is None else self.usage.egress_today(session),
                spent=str if self.usage is None else partial(self.usage.spent, session),
            )

    def _leave(self, session: LiveSession) -> None:
        if self._live.get(session.key) is session:
            del self._live[session.key]
            self._quota.changed()
        self.recount()

    def recount(self) -> None:
        """Bring the occupancy up to date, also after a process that has died with other numbers."""
        self._occupancy.live = len(self._live)
        if self._occupancy.memory is not None:
            live = sum(
                session.limits["memory"] for session in self._live.values() if session.limits
            )
            self._occupancy.promised = live + self._making_memory

    def _locked(self, key: Key) -> _Locked:
        return _Locked(self._locks, key)


class _Locked:
    """The lock of one key, which exists while somebody uses it. Every command takes it, so this is
    no generator."""

    def __init__(self, locks: dict[Key, tuple[asyncio.Lock, int]], key: Key) -> None:
        self._locks = locks
        self._key = key

    async def __aenter__(self) -> None:
        lock, users = self._locks.get(self._key) or (asyncio.Lock(), 0)
        self._locks[self._key] = lock, users + 1
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        self._leave().release()

    def _leave(self) -> asyncio.Lock:
        lock, users = self._locks.pop(self._key)
        if users > 1:
            self._locks[self._key] = lock, users - 1
        return lock


def _can_wait(session: LiveSession) -> bool:
    """Whether commands run in it for which there is time before its box ends."""
    ends_at = session.box.ends_at
    return bool(session.busy) and ends_at is not None and time.time() < ends_at - KEEP_BEFORE_S


def _error_of(session: LiveSession) -> SandboxError:
    """The error for callers of a session that has ended."""
    if session.moved:
        return Misdirected(f"another worker has thread {session.record.thread_id!r} now")
    record = replace(session.record, status=session.ended or Status.LOST)
    return error_for(record, Target(session_id=record.session_id))
