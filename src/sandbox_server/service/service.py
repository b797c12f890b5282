"""SandboxService: the sandboxes of this machine, for all tenants."""

from __future__ import annotations

import contextlib
import hashlib
import signal as signals
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, Literal, TypedDict

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    CheckRequest,
    CleanupResult,
    CommandInfo,
    CommandList,
    CommandTarget,
    CreateSessionRequest,
    DownloadRequest,
    EmptyRequest,
    ExecuteRequest,
    ExecuteResult,
    FileEntry,
    FollowRequest,
    Health,
    ListRequest,
    ListResult,
    RenameRequest,
    Session,
    SessionInfo,
    SessionList,
    SessionState,
    SignalRequest,
    StdinReceipt,
    StdinRequest,
    Target,
    UploadRequest,
    UploadResult,
    Verdict,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes, Tenants, to_run
from sandbox_server.runtime.agent import Event, Exited, ListEnd, RunOptions
from sandbox_server.service.answers import (
    LOOKBACK,
    EventAnswers,
    ServiceFacts,
    command_info,
    download_info,
    execute_result,
    file_entry,
    life,
    session_info,
    session_summary,
    told_session,
)
from sandbox_server.service.gate import Gate
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.table import SessionOptions, SessionTable

__all__ = ["SandboxService", "ServiceFacts"]

_Handler = Callable[[str, Any], Awaitable[Any]]
"""Takes the tenant and the request."""


class SandboxService(Tenants):
    """Everything a caller can do. Boxes, their pool and their ends are looked after elsewhere."""

    def __init__(
        self,
        table: SessionTable,
        facts: ServiceFacts,
        *,
        health: Callable[[], Health],
        gate: Gate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._facts = facts
        self._health = health
        self._gate = gate or Gate.default()
        self._clock = clock
        self.handlers: Mapping[Operation[Any, Any], _Handler] = {
            op.CREATE_SESSION: self._create_session,
            op.SESSION: self._session,
            op.SESSIONS: self._sessions,
            op.CLEANUP: self._cleanup,
            op.HEALTH: self._healthy,
            op.EXECUTE: self._execute,
            op.CHECK: self._check,
            op.RESULT: self._result,
            op.COMMANDS: self._commands,
            op.SIGNAL: self._signal,
            op.STDIN: self._stdin,
            op.LIST_FILES: self._list_files,
            op.RENAME: self._rename,
        }

    def __repr__(self) -> str:
        return f"<SandboxService {self._facts.worker_id} {self._facts.runtime} {self._table!r}>"

    @property
    def facts(self) -> ServiceFacts:
        return self._facts

    def of(self, tenant: str) -> Sandboxes:
        return _OfTenant(self, tenant)

    async def health(self) -> Health:
        return self._health()

    # Sessions

    async def _create_session(self, tenant: str, request: CreateSessionRequest) -> Session:
        own_id = None if request.thread_id else str(uuid.uuid4())
        wanted = SessionOptions(
            environment=request.environment,
            env=request.env,
            idle_timeout_s=request.idle_timeout_s,
            session_id=own_id,
        )
        session, state = await self._table.open(tenant, request.thread_id or own_id or "", wanted)
        status: Literal["created", "existing"] = "existing" if state == "live" else "created"
        return told_session(session, self._facts, status=status, now=self._clock())

    async def _session(self, tenant: str, target: Target) -> SessionInfo:
        session = await self._table.find(tenant, target)
        async with self._told_if_lost(session):
            state, usage = await session.agent.state(), await session.agent.usage()
        return session_info(session, self._facts, state, usage, now=self._clock())

    async def _sessions(self, tenant: str, _request: EmptyRequest) -> SessionList:
        own = [s for s in self._table.sessions() if s.record.tenant == tenant]
        own.sort(key=lambda session: session.record.created_at)
        now = self._clock()
        return SessionList(sessions=[session_summary(s, self._facts, now=now) for s in own])

    async def _cleanup(self, tenant: str, target: Target) -> CleanupResult:
        await self._table.cleanup(await self._table.find(tenant, target))
        return CleanupResult()

    async def _healthy(self, _tenant: str, _request: EmptyRequest) -> Health:
        return self._health()

    # Commands

    async def _execute(self, tenant: str, request: ExecuteRequest) -> ExecuteResult:
        session, state, request = await self._admitted(tenant, request)
        async with self._using(session, for_s=self._timeout_s(request)):
            if request.background:
                return await self._start(session, state, request)
            result = await session.agent.run(request.command, **self._options(request))
            session.cwd = result.exit.cwd
        return execute_result(result, session, state)

    async def _start(
        self, session: LiveSession, state: SessionState, request: ExecuteRequest
    ) -> ExecuteResult:
        command_id = await session.agent.start(request.command, **self._options(request))
        session.watch(command_id, clock=self._clock, for_s=self._timeout_s(request))
        about = session.agent.about
        return ExecuteResult(
            exit_code=None, output="", stdout="", stderr="", command_id=command_id,
            duration_ms=0.0, timed_out=False, truncated=False, output_bytes=0,
            cwd=about.cwd if about else WORKSPACE, **life(session, state),
        )  # fmt: skip

    async def stream(self, tenant: str, request: ExecuteRequest) -> AsyncGenerator[CommandEvent]:
        session, state, request = await self._admitted(tenant, request)
        events = session.agent.stream(request.command, **self._options(request))
        for_s = self._timeout_s(request)
        async for event in self._told(session, state, events, for_s=for_s):
            yield event

    async def _check(self, tenant: str, request: CheckRequest) -> Verdict:
        session = await self._there(tenant, request)
        return await self._gate.check(request, tenant=tenant, **_standing(session))

    async def _admitted(
        self, tenant: str, request: ExecuteRequest
    ) -> tuple[LiveSession, SessionState, ExecuteRequest]:
        """The one way for a command into a session: past the gate. Raises CommandRejected."""
        before = _standing(await self._there(tenant, to_run(request)))
        admitted = await self._gate.admit(request, tenant=tenant, **before)
        session, state = await self._open(tenant, request)
        if _standing(session) != before:  # Somebody made or moved it meanwhile.
            admitted = await self._gate.admit(request, tenant=tenant, **_standing(session))
        return session, state, admitted

    async def _there(self, tenant: str, target: Target) -> LiveSession | None:
        """The session meant, where there is one. Raises SessionNotFound for a session_id."""
        if target.thread_id is not None:
            return self._table.live(tenant, target.thread_id)
        return await self._table.find(tenant, target)

    async def follow(self, tenant: str, request: FollowRequest) -> AsyncGenerator[CommandEvent]:
        session = await self._table.find(tenant, request)
        start = max(request.offset - LOOKBACK, 0)
        events = session.agent.attach(request.command_id, offset=start)
        async for event in self._told(session, "live", events, offset=request.offset):
            yield event

    async def _told(
        self,
        session: LiveSession,
        state: SessionState,
        events: AsyncGenerator[Event],
        *,
        offset: int = 0,
        for_s: float = 0.0,
    ) -> AsyncGenerator[CommandEvent]:
        limit = self._facts.limits.output_limit_bytes
        wording = EventAnswers(session, state, output_limit=limit, offset=offset)
        async with self._using(session, for_s=for_s), contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Exited):
                    session.cwd = event.result.cwd
                for told in wording.of(event):
                    yield told

    async def _result(self, tenant: str, request: CommandTarget) -> ExecuteResult:
        session = await self._table.find(tenant, request)
        async with self._told_if_lost(session):
            limit = self._facts.limits.output_limit_bytes
            found = await session.agent.result(request.command_id, output_limit=limit)
        return execute_result(found, session, "live")

    async def _commands(self, tenant: str, target: Target) -> CommandList:
        session = await self._table.find(tenant, target)
        async with self._told_if_lost(session):
            state = await session.agent.state()
        return CommandList(
            commands=[command_info(summary) for summary in state.commands],
            truncated=state.commands_truncated,
        )

    async def _signal(self, tenant: str, request: SignalRequest) -> CommandInfo:
        session = await self._table.find(tenant, request)
        number = signals.Signals[f"SIG{request.signal}"]
        async with self._using(session):
            return command_info(await session.agent.signal(request.command_id, number))

    async def _stdin(self, tenant: str, request: StdinRequest) -> StdinReceipt:
        session = await self._table.find(tenant, request)
        async with self._using(session):
            received = await session.agent.send_stdin(
                request.command_id, request.data_bytes(), end=request.eof, offset=request.offset
            )
        return StdinReceipt(received=received)

    # Files

    async def upload(
        self, tenant: str, request: UploadRequest, chunks: AsyncIterable[bytes]
    ) -> UploadResult:
        session, _ = await self._open(tenant, request)
        digest = hashlib.sha256()

        async def hashed() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                digest.update(chunk)
                yield chunk

        limit = self._facts.limits.upload_limit_bytes
        async with self._using(session):
            stored = await session.agent.put(request.path, hashed(), limit=limit)
        return UploadResult(
            filename=PurePosixPath(stored.path).name,
            path=stored.path,
            size=stored.size,
            sha256=digest.hexdigest(),
        )

    @contextlib.asynccontextmanager
    async def download(self, tenant: str, request: DownloadRequest) -> AsyncIterator[Download]:
        session = await self._table.find(tenant, request)
        async with self._using(session), session.agent.get(request.path, digest=True) as file:
            yield Download(download_info(file.about), aiter(file))

    async def _list_files(self, tenant: str, request: ListRequest) -> ListResult:
        session, _ = await self._open(tenant, request)
        entries: list[FileEntry] = []
        batches = session.agent.batches(
            request.path, recursive=request.recursive, limit=request.limit
        )
        async with self._using(session), contextlib.aclosing(batches):
            async for batch in batches:
                if isinstance(batch, ListEnd):
                    return ListResult(path=request.path, entries=entries, truncated=batch.truncated)
                entries += map(file_entry, batch)
        raise AssertionError("a listing ends or raises")

    async def _rename(self, tenant: str, request: RenameRequest) -> FileEntry:
        session = await self._table.find(tenant, request)
        async with self._using(session):
            moved = await session.agent.rename(request.path, request.to, replace=request.replace)
        return file_entry(moved)

    # Together

    async def _open(self, tenant: str, target: Target) -> tuple[LiveSession, SessionState]:
        """By thread_id a session is made where there is none, by session_id it has to exist."""
        if target.thread_id is not None:
            return await self._table.open(tenant, target.thread_id)
        session = await self._table.find(tenant, target)
        async with self._told_if_lost(session):
            await session.meet()
        return session, "live"

    def _options(self, request: ExecuteRequest) -> RunOptions:
        return {
            "timeout_s": self._timeout_s(request),
            "cwd": request.cwd,
            "env": request.env,
            "stdin": None if request.stdin is None else request.stdin.encode(),
            "stdin_open": request.stdin_open,
            "key": request.idempotency_key,
            "output_limit": self._facts.limits.output_limit_bytes,
        }

    def _timeout_s(self, request: ExecuteRequest) -> float:
        return request.timeout or self._facts.limits.command_timeout_s

    def _using(self, session: LiveSession, *, for_s: float = 0.0) -> _Watched:
        """for_s: how long what is begun may go on after its caller has left."""
        return _Watched(self._table, session, use=session.use(self._clock, for_s=for_s))

    def _told_if_lost(self, session: LiveSession) -> _Watched:
        return _Watched(self._table, session)


class _OfTenant(Sandboxes):
    """The service as one tenant sees it."""

    def __init__(self, service: SandboxService, tenant: str) -> None:
        self._service = service
        self._tenant = tenant

    def __repr__(self) -> str:
        return f"<{self._tenant} at {self._service!r}>"

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        answer: Ans = await self._service.handlers[operation](self._tenant, request)
        return answer

    def events(self, request: ExecuteRequest | FollowRequest) -> AsyncGenerator[CommandEvent]:
        if isinstance(request, ExecuteRequest):
            return self._service.stream(self._tenant, request)
        return self._service.follow(self._tenant, request)

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        return await self._service.upload(self._tenant, request, chunks)

    def download(
        self, request: DownloadRequest
    ) -> contextlib.AbstractAsyncContextManager[Download]:
        return self._service.download(self._tenant, request)


class _Watched:
    """A session while something is done with it: if its box goes, the loss is told.

    A class: a loop that shuts down closes generators in any order, also those of decorators.
    """

    def __init__(
        self,
        table: SessionTable,
        session: LiveSession,
        *,
        use: contextlib.AbstractContextManager[None] | None = None,
    ) -> None:
        self._table = table
        self._session = session
        self._use = use or contextlib.nullcontext()

    async def __aenter__(self) -> None:
        self._use.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._use.__exit__(kind, exc, trace)
        # A box that is being ended may go silent before it is gone.
        ended = isinstance(exc, RuntimeUnavailable) and self._session.ended is not None
        if isinstance(exc, SessionLost) or ended:
            raise await self._table.lose(self._session) from exc


class _Standing(TypedDict):
    environment: str | None
    cwd: str | None


def _standing(session: LiveSession | None) -> _Standing:
    """What a verdict on a command depends on besides the command."""
    if session is None:
        return {"environment": None, "cwd": WORKSPACE}
    return {"environment": session.environment, "cwd": session.cwd}
