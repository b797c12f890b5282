"""Handlers of the session operations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.operations import Handlers
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.service import answers
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.agents import session_options
from sandbox_server.service.answers import ServiceFacts
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions

FromCheckpoint = Callable[[str, models.CreateSessionRequest], Awaitable[SessionOptions]]
"""What a session of a tenant has that begins with a checkpoint."""


class SessionHandlers:
    def __init__(
        self,
        access: SessionAccess,
        facts: ServiceFacts,
        registry: LiveRegistry,
        name_of: Callable[[str], str],
        from_checkpoint: FromCheckpoint,
    ) -> None:
        self._access = access
        self._name_of = name_of
        self._facts = facts
        self._registry = registry
        self._from_checkpoint = from_checkpoint
        self.handlers: Handlers = {
            op.CREATE_SESSION: self._create_session,
            op.SESSION: self._session,
            op.SESSIONS: self._sessions,
            op.SET_LIFETIME: self._set_lifetime,
            op.SET_EGRESS: self._set_egress,
            op.PAUSE: self._pause,
            op.UNPAUSE: self._unpause,
            op.CLEANUP: self._cleanup,
        }

    async def _create_session(
        self, tenant: str, request: models.CreateSessionRequest
    ) -> models.Session:
        own_id = None if request.thread_id else str(uuid.uuid4())
        if request.environment is not None:
            named = self._name_of(request.environment)
            request = request.model_copy(update={"environment": named})
        if request.checkpoint_id is None:
            wanted = session_options(request, self._registry.current(), tenant, session_id=own_id)
        else:
            wanted = replace(await self._from_checkpoint(tenant, request), session_id=own_id)
        session, state = await self._access.table.open(
            tenant, request.thread_id or own_id or "", wanted
        )
        status: Literal["created", "existing"] = "existing" if state == "live" else "created"
        answer = answers.session_answer(session, self._facts, status=status, now=time.monotonic())
        if state == "live" and (ignored := wanted.not_applied(session)):
            return answer.model_copy(update={"not_applied": ignored})
        return answer

    async def _session(self, tenant: str, target: models.Target) -> models.SessionInfo:
        session = await self._access.table.find(tenant, target)
        async with self._access.reporting_loss(session):
            state, usage = await session.agent.state(), await session.agent.usage()
        return answers.session_info(session, self._facts, state, usage, now=time.monotonic())

    async def _sessions(self, tenant: str, request: models.SessionsRequest) -> models.SessionList:
        own = (s for s in self._access.table.sessions() if s.record.tenant == tenant)
        now = time.monotonic()
        return request.page(answers.session_summary(s, self._facts, now=now) for s in own)

    async def _pause(self, tenant: str, target: models.Target) -> models.SessionSummary:
        session = await self._access.table.find(tenant, target)
        async with self._access.reporting_loss(session):
            await self._access.table.pause(session)
        return self._summary(session)

    async def _unpause(self, tenant: str, target: models.Target) -> models.SessionSummary:
        session = await self._access.table.find(tenant, target)
        async with self._access.reporting_loss(session):
            await self._access.table.unpause(session)
        return self._summary(session)

    async def _set_lifetime(
        self, tenant: str, request: models.LifetimeRequest
    ) -> models.SessionSummary:
        session = await self._access.table.find(tenant, request)
        end_at = time.time() + request.lifetime_s if request.lifetime_s else None
        await self._access.table.set_end(session, end_at, only_later=request.only_longer)
        return self._summary(session)

    async def _set_egress(
        self, tenant: str, request: models.EgressRequest
    ) -> models.SessionSummary:
        session = await self._access.table.find(tenant, request)
        await self._access.table.set_egress(session, request.rules())
        return self._summary(session)

    def _summary(self, session: LiveSession) -> models.SessionSummary:
        return answers.session_summary(session, self._facts, now=time.monotonic())

    async def _cleanup(self, tenant: str, target: models.Target) -> models.CleanupResult:
        session = await self._access.table.find(tenant, target)
        await self._access.table.cleanup(session)
        return models.CleanupResult(
            environment=session.environment,
            idle_timeout_s=session.idle_timeout_s,
            provider=session.provider or None,
            limits=dict(session.limits or {}),
            agent=session.made_for.name if session.made_for else None,
            volumes=answers.mounted(session),
            network=session.record.asked.get("network"),
            metadata=session.metadata,
            lifetime_s=session.record.asked.get("lifetime_s"),
            ports=session.ports,
            egress_rules=session.egress_rules,
        )
