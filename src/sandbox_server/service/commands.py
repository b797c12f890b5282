"""Handlers of the command operations."""

from __future__ import annotations

import contextlib
import os
import signal as signals
from collections.abc import AsyncGenerator
from functools import partial
from typing import NamedTuple, TypedDict

from sandbox_sdk.protocol import errors, models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.operations import Handlers
from sandbox_sdk.protocol.sandboxes import to_run
from sandbox_server.events.sender import Sender, require_webhook
from sandbox_server.runtime.agent import (
    CodeOptions,
    CommandResult,
    CommandSummary,
    Event,
    RunOptions,
    Started,
)
from sandbox_server.service import answers
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.answers import LOOKBACK, EventAnswers, Hints, ServiceFacts
from sandbox_server.service.gate import Gate
from sandbox_server.service.hints import TAIL, hint_for
from sandbox_server.service.points import Before
from sandbox_server.service.stored import Collected, StoredHandlers
from sandbox_server.sessions.background import background_id
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions


class Begun(NamedTuple):
    """A command or code that a call begins."""

    request: models.ExecuteRequest | models.RunCodeRequest
    options: RunOptions | CodeOptions

    @property
    def text(self) -> str:
        request = self.request
        return request.command if isinstance(request, models.ExecuteRequest) else request.code

    def is_replayed(self, command_id: str) -> bool:
        """Whether the key led to what an earlier call began: it has the id of that one."""
        return self.options["key"] is not None and self.options["command_id"] != command_id


class CommandHandlers:
    def __init__(
        self,
        access: SessionAccess,
        facts: ServiceFacts,
        gate: Gate,
        stored: StoredHandlers,
        webhooks: Sender | None = None,
    ) -> None:
        """webhooks: that commands can name."""
        self._webhooks = webhooks
        self._stored = stored
        self._access = access
        self._facts = facts
        self._gate = gate
        self.handlers: Handlers = {
            op.EXECUTE: self.execute,
            op.CHECK: self._check,
            op.RESULT: self._result,
            op.COMMANDS: self._commands,
            op.SIGNAL: self._signal,
            op.STDIN: self._stdin,
            op.RESIZE: self._resize,
        }

    async def execute(self, tenant: str, request: models.ExecuteRequest) -> models.ExecuteResult:
        session, state, request = await self._admitted(tenant, request)
        async with self._access.table.notes.running():
            return await self._executed(session, state, request)

    async def _executed(
        self, session: LiveSession, state: models.SessionState, request: models.ExecuteRequest
    ) -> models.ExecuteResult:
        async with self._access.using(
            session, for_s=self._timeout_s(session, request) or models.MAX_TIMEOUT_S
        ):
            if request.background:
                return await self._start(session, state, request)
            options = self._options(session, request)
            begun = Begun(request, options)
            async with self._before(session, begun) as before:
                result = await session.agent.run(request.command, **options)
                before.ended(result)
            session.cwd = result.cwd
            kept = await self._kept(session, result, request)
        replayed = begun.is_replayed(result.command_id)
        if not replayed:
            self._access.table.notes.ran(session, request.command, result, output=None)
        return answers.execute_result(
            result,
            session,
            state,
            kept,
            replayed=replayed,
            hint=self._hint(session, result, request.command),
        )

    async def _kept(
        self,
        session: LiveSession,
        result: CommandResult,
        request: models.ExecuteRequest | models.RunCodeRequest | None,
    ) -> Collected | None:
        """The artifacts of a command that has ended; None if it left none."""
        wanted = request is not None and request.artifacts
        if not (wanted or result.marked) or result.unchanged:
            return None
        return await self._stored.collect(session, result.command_id, marked_only=not wanted)

    async def _start(
        self, session: LiveSession, state: models.SessionState, request: models.ExecuteRequest
    ) -> models.ExecuteResult:
        options = self._options(session, request)
        begun = Begun(request, options)
        background, notes = self._access.table.background, self._access.table.notes
        ours, key = options["command_id"] or "", request.idempotency_key
        async with (
            background.beginning(session, ours, key=key) as beginning,
            self._before(session, begun) as before,
        ):
            command_id = await self._begin(session, request, options)
            before.began(command_id)
            beginning.began(command_id)
        replayed = begun.is_replayed(command_id)
        # Somebody may leave a terminal; who looks at one uses it. An earlier call watches its own.
        if request.pty is None and not replayed:
            session.watch(
                command_id,
                for_s=self._timeout_s(session, request),
                then=partial(notes.ran_unwatched, session, command_id),
                over=partial(background.ended, session, command_id),
            )
        elif not replayed:
            background.watch(session, command_id)
        notes.started(session, request.command, command_id)
        about = session.agent.about
        return models.ExecuteResult(
            exit_code=None, output="", stdout="", stderr="", command_id=command_id,
            duration_ms=0.0, timed_out=False, truncated=False, output_bytes=0,
            cwd=about.cwd if about else models.WORKSPACE, replayed=replayed,
            **answers.session_life(session, state),
        )  # fmt: skip

    async def _begin(
        self, session: LiveSession, request: models.ExecuteRequest, options: RunOptions
    ) -> str:
        """Its id. That a webhook will be told of its end is written down first."""
        ours = options["command_id"]
        if request.notify is None or self._webhooks is None or ours is None:
            return await session.agent.start(request.command, **options)
        self._webhooks.promise(ours, session.record.session_id, request.notify)
        try:
            command_id = await session.agent.start(request.command, **options)
        except (errors.RuntimeUnavailable, errors.SessionLost):
            raise  # It may have begun.
        except errors.SandboxError:
            self._webhooks.forget(ours)
            raise
        if command_id != ours:  # An earlier call with the same key has begun it.
            self._webhooks.forget(ours)
        return command_id

    async def stream(self, tenant: str, request: models.ExecuteRequest) -> AsyncGenerator[AnyEvent]:
        session, state, request = await self._admitted(tenant, request)
        options = self._options(session, request)
        events = session.agent.stream(request.command, **options)
        for_s = self._timeout_s(session, request) or models.MAX_TIMEOUT_S
        about = self._about(session, state, command=request.command, encoding=request.encoding)
        begun = Begun(request, options)
        async for event in self.told(session, about, events, begun=begun, for_s=for_s):
            yield event

    async def _check(self, tenant: str, request: models.CheckRequest) -> models.Verdict:
        session = await self._access.expected(tenant, request)
        return await self._gate.check(request, tenant=tenant, **_policy_context(session))

    async def _admitted(
        self, tenant: str, request: models.ExecuteRequest
    ) -> tuple[LiveSession, models.SessionState, models.ExecuteRequest]:
        """Pass a command through the gate and open its session; there is no other way in. Raises
        CommandRejected."""
        if request.timeout == 0 and not self._facts.endless_commands:
            raise errors.InvalidRequest(
                "timeout 0: the operator does not allow commands without a time limit here; give"
                f" one of at most {models.MAX_TIMEOUT_S:g} seconds, or leave it out"
            )
        if request.notify is not None:
            require_webhook(self._webhooks, request.notify, tenant)
        before = _policy_context(await self._access.expected(tenant, to_run(request)))
        admitted = await self._gate.admit(request, tenant=tenant, **before)
        session, state = await self._access.open(tenant, request)
        if request.stdin_open:
            session.agent.require("stdin", "stdin_open")
        if request.pty is not None:
            session.agent.require("pty", "a terminal")
        if _policy_context(session) != before:  # A concurrent call made it or changed its cwd.
            admitted = await self._gate.admit(request, tenant=tenant, **_policy_context(session))
        return session, state, admitted

    async def follow(self, tenant: str, request: models.FollowRequest) -> AsyncGenerator[AnyEvent]:
        session = await self._access.table.find(tenant, request)
        session.agent.require("replay", "following a command that was started before")
        exact = request.encoding == "bytes"
        start = request.offset if exact else max(request.offset - LOOKBACK, 0)
        events = session.agent.attach(request.command_id, offset=start)
        about = self._about(session, "live", offset=request.offset, encoding=request.encoding)
        async for event in self.told(session, about, events):
            yield event

    async def told(
        self,
        session: LiveSession,
        about: EventAnswers,
        events: AsyncGenerator[Event],
        *,
        begun: Begun | None = None,
        for_s: float = 0.0,
    ) -> AsyncGenerator[AnyEvent]:
        """The events of a command or of code. begun: by this call; None where it only follows."""
        notes = self._access.table.notes
        async with (
            notes.running(begun=begun is not None) as running,
            self._access.using(session, for_s=for_s),
            self._before(session, begun, about.what) as before,
            contextlib.aclosing(events),
        ):
            async for event in events:
                if isinstance(event, Started) and begun is not None:
                    about.replayed = begun.is_replayed(event.command_id)
                    before.began(event.command_id)
                if isinstance(event, CommandResult):
                    if about.what == "command":
                        session.cwd = event.cwd
                    before.ended(event)
                    if event.exit_code is not None:
                        about.kept = await self._kept(session, event, begun and begun.request)
                    running.over = True
                    if begun is not None and not about.replayed:
                        notes.ran(session, begun.text, event, output=about.tail)
                for answer in about.told(event):
                    yield answer

    def _before(
        self, session: LiveSession, begun: Begun | None, what: models.PointOf = "command"
    ) -> Before:
        """Keeps a point, where the session has a history and the call begins something."""
        keeper = self._access.table.keeper
        if begun is None:
            return Before(keeper, session, "", wanted=False)
        return Before(keeper, session, begun.text, begun.options["command_id"], what=what)

    def _about(
        self,
        session: LiveSession,
        state: models.SessionState,
        *,
        command: str | None = None,
        offset: int = 0,
        encoding: models.OutputEncoding = "utf-8",
    ) -> EventAnswers:
        return EventAnswers(
            session,
            state,
            output_limit=self._facts.limits.output_limit_bytes,
            offset=offset,
            encoding=encoding,
            hints=self._hints(session, command),
        )

    def _hint(self, session: LiveSession, result: CommandResult, command: str | None) -> str | None:
        """Only for a command that failed: most do not."""
        if not result.exit_code:
            return None
        return self._hints(session, command)(result, result.tail(TAIL))

    def _hints(self, session: LiveSession, command: str | None) -> Hints:
        """command: None where this call did not start it, so that its source is not known."""
        return partial(hint_for, limits=self._facts.limits_of(session), command=command)

    async def _result(self, tenant: str, request: models.CommandTarget) -> models.ExecuteResult:
        session = await self._access.table.find(tenant, request)
        async with self._access.reporting_loss(session):
            limit = self._facts.limits.output_limit_bytes
            found = await session.agent.result(request.command_id, output_limit=limit)
        hint = self._hint(session, found, None)
        return answers.execute_result(found, session, "live", hint=hint)

    async def _commands(self, tenant: str, target: models.Target) -> models.CommandList:
        session = await self._access.table.find(tenant, target)
        async with self._access.reporting_loss(session):
            state = await session.agent.state()
        return models.CommandList(
            commands=[_info(session, summary) for summary in state.commands],
            truncated=state.commands_truncated,
        )

    async def _signal(self, tenant: str, request: models.SignalRequest) -> models.CommandInfo:
        session = await self._access.table.find(tenant, request)
        number = signals.Signals[f"SIG{request.signal}"]
        async with self._access.using(session):
            signalled = await session.agent.signal(request.command_id, number)
        return _info(session, signalled)

    async def _resize(self, tenant: str, request: models.ResizeRequest) -> models.CommandInfo:
        session = await self._access.table.find(tenant, request)
        session.agent.require("pty", "a terminal")
        async with self._access.using(session):
            resized = await session.agent.resize(
                request.command_id, rows=request.rows, cols=request.cols
            )
        return _info(session, resized)

    async def _stdin(self, tenant: str, request: models.StdinRequest) -> models.StdinReceipt:
        session = await self._access.table.find(tenant, request)
        session.agent.require("stdin", "input for a running command")
        async with self._access.using(session):
            received = await session.agent.send_stdin(
                request.command_id, request.data_bytes(), end=request.eof, offset=request.offset
            )
        return models.StdinReceipt(received=received)

    def _options(self, session: LiveSession, request: models.ExecuteRequest) -> RunOptions:
        pty = request.pty
        command_id = background_id() if request.background else os.urandom(16).hex()
        session.remember(command_id, request.command)
        return {
            "timeout_s": self._timeout_s(session, request),
            "cwd": request.cwd,
            "env": request.env if pty is None else {"TERM": pty.term, **request.env},
            "stdin": None if request.stdin is None else request.stdin.encode(),
            "stdin_open": request.stdin_open or pty is not None,
            "pty": None if pty is None else (pty.rows, pty.cols),
            "key": request.idempotency_key,
            "command_id": command_id,
            "output_limit": self._facts.limits.output_limit_bytes,
        }

    def _timeout_s(self, session: LiveSession, request: models.ExecuteRequest) -> float | None:
        """None for no limit: nobody waits for a command in the background."""
        if request.timeout == 0 or (request.timeout is None and request.background):
            return None
        return request.timeout or self._facts.command_timeout_s(session)


def _info(session: LiveSession, summary: CommandSummary) -> models.CommandInfo:
    return answers.command_info(summary, session.texts.get(summary.command_id))


class _PolicyContext(TypedDict):
    environment: str | None
    policy: str | None
    cwd: str | None


def _policy_context(session: LiveSession | SessionOptions) -> _PolicyContext:
    """What a verdict depends on besides the command."""
    return {"environment": session.environment, "policy": session.policy, "cwd": session.cwd}
