"""Handlers of the code operations."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Literal, TypedDict, cast

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_sdk.protocol.events import AnyEvent, CodeCollector, CodeEvent
from sandbox_sdk.protocol.operations import Handlers
from sandbox_server.registry.environments import Kernels
from sandbox_server.runtime.agent import CodeOptions, ContextAbout, ContextRequest
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.code_answers import CodeAnswers, bash_events, bash_result
from sandbox_server.service.commands import Begun, CommandHandlers
from sandbox_server.service.gate import Gate
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions

_ANSWER_S = 30.0
"""How long after the end of a run the box may take to tell of it."""
KernelsOf = Callable[[str | None], Kernels]
"""The kernels of an environment."""


class CodeHandlers:
    def __init__(
        self,
        access: SessionAccess,
        facts: ServiceFacts,
        gate: Gate,
        commands: CommandHandlers,
        kernels_of: KernelsOf,
    ) -> None:
        self._access = access
        self._facts = facts
        self._gate = gate
        self._commands = commands
        self._kernels_of = kernels_of
        self.handlers: Handlers = {
            op.RUN_CODE: self._run,
            op.CONTEXTS: self._contexts,
            op.CREATE_CONTEXT: self._create,
            op.RESTART_CONTEXT: partial(self._change, "restart"),
            op.REMOVE_CONTEXT: partial(self._change, "remove"),
            op.INTERRUPT_CONTEXT: partial(self._change, "interrupt"),
        }

    async def _run(self, tenant: str, request: models.RunCodeRequest) -> models.CodeResult:
        if _is_bash(request):
            return bash_result(await self._commands.execute(tenant, request.as_command()))
        session, state = await self._admitted(tenant, request)
        patience_s = self._timeout_s(session, request) + models.KERNEL_S + _ANSWER_S
        collector = CodeCollector()
        try:
            async with (
                asyncio.timeout(patience_s),
                contextlib.aclosing(self._ran(session, state, request, live=False)) as events,
            ):
                async for event in events:
                    if result := collector.add(event):
                        return result
        except TimeoutError:
            raise RuntimeUnavailable(
                f"the box did not report the end of the code within {patience_s:g} s; try again"
            ) from None
        raise AssertionError("a run ends or raises")

    async def stream(self, tenant: str, request: models.RunCodeRequest) -> AsyncGenerator[AnyEvent]:
        if _is_bash(request):
            async for command_event in self._commands.stream(tenant, request.as_command()):
                for answer in bash_events(command_event):
                    yield answer
            return
        session, state = await self._admitted(tenant, request)
        async for event in self._ran(session, state, request, live=True):
            yield event

    def _ran(
        self,
        session: LiveSession,
        state: models.SessionState,
        request: models.RunCodeRequest,
        *,
        live: bool,
    ) -> AsyncGenerator[CodeEvent]:
        options = self._options(session, request, live=live)
        about = CodeAnswers(
            session, state, output_limit=self._facts.limits.output_limit_bytes, asked=request
        )
        for_s = self._timeout_s(session, request) + models.KERNEL_S
        events = session.agent.code(request.code, **options)
        told = self._commands.told(
            session, about, events, begun=Begun(request, options), for_s=for_s
        )
        return cast("AsyncGenerator[CodeEvent]", told)

    async def _admitted(
        self, tenant: str, request: models.RunCodeRequest
    ) -> tuple[LiveSession, models.SessionState]:
        """Pass code through the gate and open its session. Raises CommandRejected."""
        found = await self._access.expected(tenant, request)
        language = await self._language(found, request)
        admit = partial(self._gate.admit_code, request, tenant=tenant, language=language)
        before = _policy_context(found)
        await admit(**before)
        session, state = await self._access.open(tenant, request)
        if _policy_context(session) != before:  # A concurrent call made it.
            await admit(**_policy_context(session))
        session.agent.require("code", "run_code")
        return session, state

    async def _language(
        self, session: LiveSession | SessionOptions, request: models.RunCodeRequest
    ) -> str:
        """Of the context that is named; an earlier process may have made it."""
        if request.language is not None or request.context_id is None:
            return request.language or "python"
        if not isinstance(session, LiveSession):
            return "python"
        known = session.languages
        if request.context_id not in known and "code" not in session.agent.lacks:
            async with self._access.reporting_loss(session, unpause=True):
                found = await session.agent.contexts({"op": "list"})
            known.update({about.context_id: about.language for about in found})
        return known.get(request.context_id, "python")

    async def follow(
        self, tenant: str, request: models.FollowCodeRequest
    ) -> AsyncGenerator[AnyEvent]:
        """From the beginning, and what was told before is left out: a run is kept as a whole."""
        session = await self._access.table.find(tenant, request)
        session.agent.require("replay", "following a run that was started before")
        limit = self._facts.limits.output_limit_bytes
        about = CodeAnswers(session, "live", output_limit=limit, offset=request.offset, asked=None)
        events = session.agent.attach(request.command_id)
        async for event in self._commands.told(session, about, events):
            yield event

    def _options(
        self, session: LiveSession, request: models.RunCodeRequest, *, live: bool
    ) -> CodeOptions:
        command_id = uuid.uuid4().hex
        session.remember(command_id, request.code)
        return {
            "language": request.language,
            "context_id": request.context_id,
            "kernels": self._kernels_of(session.environment).languages,
            "timeout_s": self._timeout_s(session, request),
            "env": request.env,
            "key": request.idempotency_key,
            "command_id": command_id,
            "output_limit": self._facts.limits.output_limit_bytes,
            "changes": request.artifacts,
            "live": live,
        }

    def _timeout_s(self, session: LiveSession, request: models.RunCodeRequest) -> float:
        return request.timeout or self._facts.command_timeout_s(session)

    # Contexts

    async def _contexts(self, tenant: str, target: models.Target) -> models.ContextList:
        session = await self._access.table.find(tenant, target)
        session.agent.require("code", "contexts")
        async with self._access.reporting_loss(session, unpause=True):
            found = await session.agent.contexts({"op": "list"})
        return models.ContextList(contexts=[_context(about) for about in found])

    async def _create(self, tenant: str, request: models.CreateContextRequest) -> models.Context:
        if models.BASH in (request.language, request.context_id):
            raise InvalidRequest(
                "bash has one context, the session's shell, which is always there; run_code with"
                " language bash uses it"
            )
        session, _ = await self._access.open(tenant, request)
        made = await self._do(
            session,
            {
                "op": "create",
                "context_id": request.context_id or uuid.uuid4().hex[:12],
                "language": request.language,
                "cwd": request.cwd,
            },
        )
        session.languages[made.context_id] = made.language
        return made

    async def _change(
        self,
        what: Literal["restart", "remove", "interrupt"],
        tenant: str,
        request: models.ContextTarget,
    ) -> models.Context:
        session = await self._access.table.find(tenant, request)
        return await self._do(session, {"op": what, "context_id": request.context_id})

    async def _do(self, session: LiveSession, request: ContextRequest) -> models.Context:
        session.agent.require("code", "contexts")
        request["kernels"] = self._kernels_of(session.environment).languages
        async with self._access.using(session):
            found = await session.agent.contexts(request)
        if len(found) != 1:
            raise RuntimeUnavailable("invalid answer about contexts from the box; try again")
        return _context(found[0])


def _context(about: ContextAbout) -> models.Context:
    return models.Context(**about.model_dump())


def _is_bash(request: models.RunCodeRequest) -> bool:
    if models.BASH not in (request.language, request.context_id):
        return False
    if request.language not in (None, models.BASH) or request.context_id not in (None, models.BASH):
        raise InvalidRequest(
            "language and context_id do not go together: bash has one context, named bash"
        )
    return True


class _PolicyContext(TypedDict):
    environment: str | None
    policy: str | None


def _policy_context(session: LiveSession | SessionOptions) -> _PolicyContext:
    """What a verdict depends on besides the code."""
    return {"environment": session.environment, "policy": session.policy}
