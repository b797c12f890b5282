"""Adoption: taking over the sessions and warm boxes of the previous process after a restart, and
those of a worker that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, merged
from sandbox_server.network.modes import ORDER
from sandbox_server.registry.agents import SessionAgent
from sandbox_server.runtime.agent import BoxAgent, BoxState
from sandbox_server.runtime.base import Box, SharedBox
from sandbox_server.runtime.box_network import Network
from sandbox_server.sessions.found import Discard, Resume, Warm, decide
from sandbox_server.sessions.keeping import rules_from
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.ledger import Entry, entry_from
from sandbox_server.sessions.live import (
    LiveSession,
    asked_with,
    egress_rules_of,
    record_from_state,
)
from sandbox_server.sessions.making import SessionMaker
from sandbox_server.sessions.registry import Record, Registry, Status
from sandbox_server.sessions.rules import SessionRules
from sandbox_server.sessions.table import SessionTable

log = structlog.get_logger()

ADOPT_S = 15.0
AT_ONCE = 16
"""How many boxes are asked at a time: more slow the engine down."""


class OthersBoxes(Protocol):
    """The boxes of one provider, whoever has them."""

    @property
    def shared(self) -> bool:
        """Whether other workers can take its boxes over."""

    async def of_others(self, workers: Sequence[str]) -> Sequence[SharedBox]: ...

    async def one_of_others(self, box_id: str) -> SharedBox | None:
        """A running box of any worker."""


class FoundBoxes(OthersBoxes, Protocol):
    """The boxes of this worker, including those of earlier processes."""

    @property
    def build(self) -> str:
        """Of what a warm box must be made."""

    async def found(self) -> list[Box]: ...

    def connect(self, box: Box) -> BoxAgent: ...

    def adopt(self, box: Box, agent: BoxAgent) -> None:
        """Add a warm box to the pool."""


class Adoption:
    """A box found belongs to a session, is warm, or is destroyed. Unreachable sessions are kept."""

    def __init__(
        self,
        table: SessionTable,
        maker: SessionMaker,
        registry: Registry,
        lease: Lease,
        sources: Mapping[str, FoundBoxes],
        *,
        idle_timeout_s: float,
        rules: SessionRules,
    ) -> None:
        """sources: by provider. rules: their limits are for sessions that were recorded without."""
        self._table = table
        self._maker = maker
        self._sharing = maker.sharing
        self._registry = registry
        self._lease = lease
        self._sources = sources
        self._idle_timeout_s = idle_timeout_s
        self._rules = rules
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Adopt everything the previous process left."""
        await self._adopt({record.box_id: record for record in await self._known()})

    async def _known(self) -> list[Record]:
        """This worker's sessions by the registry. Retries while the registry is unavailable."""
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
        """`known`: the registry's live sessions of this worker, by box."""
        found = {
            box.id: (provider, box)
            for provider, source in self._sources.items()
            for box in await source.found()
        }
        entries = self._registry.ledger.entries()
        await asyncio.gather(
            *(
                self._adopt_box(provider, box, entries.get(box.id), known.get(box.id))
                for provider, box in found.values()
            )
        )
        begun = {box_id: self._record(box_id, e.state) for box_id, e in entries.items() if e.begun}
        for box_id, record in {**begun, **known}.items():
            if box_id not in found and not await self._is_anothers(box_id):
                await self._table.abandon(record)
        self._registry.ledger.keep_only(found)
        if found or known:
            log.info("worker.adopted", boxes=len(found), sessions=len(self._table), of=len(known))

    async def _is_anothers(self, box_id: str) -> bool:
        """Whether another worker has claimed a box of ours, which the registry may not know yet."""
        for source in self._sources.values():
            if source.shared and await source.one_of_others(box_id) is not None:
                return True
        return False

    async def _adopt_box(
        self, provider: str, box: Box, entry: Entry | None, known: Record | None
    ) -> None:
        """Adopt one box; a failure does not affect the others."""
        try:
            await self.adopt(provider, box, entry, known)
        except Exception:
            log.exception("box.adoption_failed", box=box.id)

    async def adopt(
        self, provider: str, box: Box, entry: Entry | None, known: Record | None
    ) -> bool:
        """Adopt a box of an earlier process, or of a worker that is gone; False if another worker
        has claimed it. entry: None for what is written on the box. Raises RuntimeUnavailable."""
        if (shared := self._sharing.of(box)) is not None:
            entry = entry or entry_from(shared.holding.note)
            known = known or await self._known_by(box, entry)
            if entry is not None:
                self._registry.ledger.put(box.id, entry)
            if not await self._claim(shared):
                self._registry.ledger.forget(box.id)
                return False
        await self._decide(provider, box, entry, known)
        if known is not None and shared is not None:
            await self._registry.took(known)
        return True

    async def _claim(self, box: SharedBox) -> bool:
        """A box of this worker is its own, also while that cannot be written on it."""
        try:
            return await self._sharing.claim(box)
        except RuntimeUnavailable as exc:
            if box.holding.owner != self._lease.worker:
                raise
            log.warning("box.not_claimed", box=box.id, why=exc.message)
            return True

    async def _known_by(self, box: Box, entry: Entry | None) -> Record | None:
        """The session that the entry of a box names, if it is live: a worker may have died after it
        had claimed the box, and before the registry knew."""
        if entry is None or entry.state is None or entry.begun:
            return None
        state = entry.state
        record = await self._registry.by_session(state["tenant"], state["session_id"])
        if record is None or record.status != Status.LIVE or record.box_id != box.id:
            return None
        return record

    async def _decide(
        self, provider: str, box: Box, entry: Entry | None, known: Record | None
    ) -> None:
        source = self._sources[provider]
        agent = source.connect(box)
        reported, why = await self._ask(agent)
        becomes = decide(
            entry, known, reported, build=source.build, idle_timeout_s=self._idle_timeout_s
        )
        match becomes:
            case Warm():
                source.adopt(box, agent)
            case Resume():
                if why:
                    log.warning("session.unreachable", box=box.id, why=why)
                kept = entry.kept if entry is not None else {}
                session = self._session(provider, box, agent, becomes, known, kept)
                await self._resume(session, reported)
            case Discard():
                log.warning("box.not_adopted", box=box.id, why=why or becomes.why)
                if known is not None:
                    await self._table.abandon(known)
                elif entry is not None and entry.begun:
                    await self._table.abandon(self._record(box.id, entry.state))
                await self._maker.discard(box, agent)

    async def _ask(self, agent: BoxAgent) -> tuple[BoxState | None, str]:
        """The state a box reports, or None and the reason."""
        try:
            async with self._slots, asyncio.timeout(ADOPT_S):
                return await agent.state(), ""
        except TimeoutError:
            return None, f"no answer within {ADOPT_S:g} s"
        except SandboxError as exc:
            return None, exc.message
        except Exception as exc:  # A hostile box may trigger anything; go on with the others.
            log.exception("box.state_broke")
            return None, repr(exc)

    def _session(
        self,
        provider: str,
        box: Box,
        agent: BoxAgent,
        becomes: Resume,
        known: Record | None,
        kept: Mapping[str, Any],
    ) -> LiveSession:
        state = becomes.state
        record = self._maker.placed(self._record(box.id, state), box, provider)
        if known is not None and not record.movable:
            # The process that made the box, for as long as it lives.
            record = replace(record, worker=known.worker)
        if "egress_rules" in kept:
            record = replace(record, asked=asked_with(record.asked, kept["egress_rules"]))
        return LiveSession(
            record,
            box,
            agent,
            idle_timeout_s=state["idle_timeout_s"],
            last_used=time.monotonic(),
            end_at=kept.get("end_at"),
            paused_at=kept.get("paused_at"),
            environment=state["environment"],
            env_digest=state.get("env_digest", ""),
            provider=provider,
            user=self._rules.user(state["environment"]),
            limits=merged(self._rules.default, state.get("limits") or {}),
            network=self._rules.network_again(
                state["environment"], provider, _network(state), egress_rules_of(record)
            ),
            made_for=SessionAgent.model_validate(kept["agent"]) if "agent" in kept else None,
            made_by=kept.get("made_by", ""),
            begun_by=dict(kept.get("begun_by", {})),
            policy=kept.get("policy"),
            keep=rules_from(record.asked),
            checkpoint_id=kept.get("checkpoint_id"),
            began_with=kept.get("checkpoint_id"),
            met=becomes.met,
            taken_over=known is not None and known.worker != record.worker,
        )

    async def _resume(self, session: LiveSession, reported: BoxState | None) -> None:
        if reported is None:
            session.may_run_until = session.last_used + MAX_TIMEOUT_S
        else:
            age_s = max(time.time() - session.record.created_at, 0.0)
            session.last_used -= min(reported.idle_s, age_s)
        await self._table.adopt(session)
        if session.ended is None and reported is not None:
            await self._table.watch_running(session, reported)

    def _record(self, box_id: str, state: Mapping[str, Any] | None) -> Record:
        """A record with epoch -1, which means not yet vouched for by this process."""
        return record_from_state(state or {}, box_id, worker=self._lease.worker, epoch=-1)


def _network(state: Mapping[str, Any]) -> Network | None:
    found = state.get("network")
    return found if found in ORDER else None
