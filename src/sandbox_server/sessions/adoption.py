"""Taking over what a worker before this one has left: sessions and warm boxes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S
from sandbox_server.runtime.agent import BoxAgent, BoxState
from sandbox_server.runtime.base import Box
from sandbox_server.sessions.found import Discard, Resume, Warm, decide
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.ledger import Entry
from sandbox_server.sessions.live import LiveSession, record_from_state
from sandbox_server.sessions.making import SessionMaker
from sandbox_server.sessions.registry import Record, Registry
from sandbox_server.sessions.table import SessionTable

log = structlog.get_logger()

ADOPT_S = 15.0
WATCHED = 64
"""Of how many commands at most that a box says are running the end is waited for."""
AT_ONCE = 16
"""How many boxes are asked at a time: an engine asked for more gets slower."""


class FoundBoxes(Protocol):
    """The boxes of this worker, whoever made them."""

    @property
    def build(self) -> str:
        """Which agent a warm box has to have."""

    async def found(self) -> list[Box]: ...

    def connect(self, box: Box) -> BoxAgent: ...

    def adopt(self, box: Box, agent: BoxAgent) -> None:
        """Keep one as warm."""


class Adoption:
    """A box is a session's, or warm, or it goes. A session that cannot be reached is not lost."""

    def __init__(
        self,
        table: SessionTable,
        maker: SessionMaker,
        registry: Registry,
        lease: Lease,
        source: FoundBoxes,
        *,
        idle_timeout_s: float,
    ) -> None:
        self._table = table
        self._maker = maker
        self._registry = registry
        self._lease = lease
        self._source = source
        self._idle_timeout_s = idle_timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Take over all there is."""
        await self._adopt({record.box_id: record for record in await self._known()})

    async def _known(self) -> list[Record]:
        """The sessions that the registry knows as this worker's. Its hiccups are waited out."""
        backoff = Backoff(0.1, 0.5, ADOPT_S)
        while True:
            try:
                return await self._registry.live()
            except RuntimeUnavailable as exc:
                pause_s = backoff.pause_s(time.monotonic())
                if pause_s is None:
                    raise
                log.warning("registry.silent", why=exc.message)
            await asyncio.sleep(pause_s)

    async def _adopt(self, known: dict[str, Record]) -> None:
        """known: the sessions that were live when the worker before this one ended, by box, as far
        as the registry knows them."""
        boxes = await self._source.found()
        entries = self._registry.ledger.entries()
        await asyncio.gather(
            *(self._take_over(box, entries.get(box.id), known.get(box.id)) for box in boxes)
        )
        begun = {box_id: self._record(box_id, e.state) for box_id, e in entries.items() if e.begun}
        for box_id, record in {**begun, **known}.items():
            if box_id not in {box.id for box in boxes}:
                await self._table.abandon(record)
        self._registry.ledger.keep_only(box.id for box in boxes)
        if boxes or known:
            log.info("worker.adopted", boxes=len(boxes), sessions=len(self._table), of=len(known))

    async def _take_over(self, box: Box, entry: Entry | None, known: Record | None) -> None:
        """A box is a session's, or warm, or it goes. A session that cannot be reached is not lost,
        and whatever goes wrong with one box costs no other."""
        try:
            await self._decide(box, entry, known)
        except Exception:
            log.exception("box.adoption_failed", box=box.id)

    async def _decide(self, box: Box, entry: Entry | None, known: Record | None) -> None:
        agent = self._source.connect(box)
        told, why = await self._asked(agent)
        becomes = decide(
            entry, known, told, build=self._source.build, idle_timeout_s=self._idle_timeout_s
        )
        match becomes:
            case Warm():
                self._source.adopt(box, agent)
            case Resume():
                if why:
                    log.warning("session.unreachable", box=box.id, why=why)
                await self._resume(box, agent, becomes, told)
            case Discard():
                log.warning("box.not_adopted", box=box.id, why=why or becomes.why)
                if known is not None:
                    await self._table.abandon(known)
                elif entry is not None and entry.begun:
                    await self._table.abandon(self._record(box.id, entry.state))
                await self._maker.discard(box, agent)

    async def _asked(self, agent: BoxAgent) -> tuple[BoxState | None, str]:
        """What a box says of itself, or None and why it says nothing."""
        try:
            async with self._slots, asyncio.timeout(ADOPT_S):
                return await agent.state(), ""
        except TimeoutError:
            return None, f"no answer within {ADOPT_S:g} s"
        except SandboxError as exc:
            return None, exc.message
        except Exception as exc:  # A hostile box may trigger anything; the others go on.
            log.exception("box.state_broke")
            return None, repr(exc)

    async def _resume(
        self, box: Box, agent: BoxAgent, becomes: Resume, told: BoxState | None
    ) -> None:
        state, now = becomes.state, time.monotonic()
        record = self._record(box.id, state)
        session = LiveSession(
            record,
            box,
            agent,
            idle_timeout_s=state["idle_timeout_s"],
            last_used=now,
            environment=state["environment"],
            met=becomes.met,
        )
        if told is None:
            session.may_run_until = now + MAX_TIMEOUT_S
        else:
            session.last_used -= min(told.idle_s, max(time.time() - record.created_at, 0.0))
        await self._table.adopt(session)
        if session.ended is None and told is not None:
            running = [command.command_id for command in told.commands if command.running]
            for command_id in running[-WATCHED:]:
                session.watch(command_id, for_s=MAX_TIMEOUT_S)

    def _record(self, box_id: str, state: Mapping[str, Any] | None) -> Record:
        """Of a session of a server before this one, not yet vouched for."""
        return record_from_state(state or {}, box_id, worker=self._lease.worker, epoch=-1)
