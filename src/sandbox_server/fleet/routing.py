"""RoutingBackend: Sandboxes offered by the workers of a fleet. It has no state to lose."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable

import structlog

from sandbox_sdk.backends.base import Download, Sandboxes, closing, to_run
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.events import CommandEvent, GapEvent, OutputEvent, StartEvent
from sandbox_sdk.protocol.models import (
    DEFAULT_TENANT,
    WORKSPACE,
    CleanupResult,
    CommandInfo,
    CommandList,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    Health,
    ListResult,
    Session,
    SessionInfo,
    SessionList,
    SessionSummary,
    SignalName,
    StdinReceipt,
    Target,
    UploadResult,
    Verdict,
)
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.health import fleet_health
from sandbox_server.fleet.replay import Replay
from sandbox_server.fleet.router import Attempt, Router
from sandbox_server.fleet.workers import Presence, Worker

_HELD_S = 5.0
"""A stream that lasted so long was a working one."""
log = structlog.get_logger()

_LIST_S = 5.0
"""How long a worker may take to list its sessions."""
_Opened = Callable[[Sandboxes, Target], AsyncIterator[CommandEvent]]


class RoutingBackend(Sandboxes):
    """Every call goes to the worker that has its thread."""

    def __init__(self, directory: Directory, router: Router, *, coordinator_id: str) -> None:
        self._directory = directory
        self._router = router
        self._id = coordinator_id
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"<RoutingBackend {self._id} {self._router!r}>"

    # Sessions

    async def create_session(
        self, request: CreateSessionRequest, *, tenant: str = DEFAULT_TENANT
    ) -> Session:
        named = Target(thread_id=request.thread_id) if request.thread_id else None
        return await self._router.route(
            self._router.attempt(tenant, named, creates=True, harmless=named is not None),
            lambda worker, _: worker.create_session(request, tenant=tenant),
        )

    async def session(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> SessionInfo:
        return await self._router.route(
            self._router.attempt(tenant, target),
            lambda worker, _: worker.session(target, tenant=tenant),
        )

    async def sessions(self, *, tenant: str = DEFAULT_TENANT) -> SessionList:
        """Of every worker that answers; the others are named."""
        workers = await self._directory.workers()
        expected = [w for w in workers if self._directory.presence(w) != Presence.GONE]
        lists = await asyncio.gather(*(self._sessions_of(worker, tenant) for worker in expected))
        every = [session for found in lists if found for session in found]
        silent = [w.id for w, found in zip(expected, lists, strict=True) if found is None]
        return SessionList(
            sessions=sorted(every, key=lambda session: session.created_at),
            unreachable=sorted(silent),
        )

    async def _sessions_of(self, worker: Worker, tenant: str) -> list[SessionSummary] | None:
        """None where it does not answer."""
        if self._directory.presence(worker) == Presence.AWAY:
            return None
        try:
            async with asyncio.timeout(_LIST_S):
                with self._router.client(worker) as client:
                    return (await client.sessions(tenant=tenant)).sessions
        except (SandboxError, TimeoutError) as exc:
            log.warning("worker.not_listed", worker=worker.id, why=str(exc))
            return None

    async def cleanup(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CleanupResult:
        return await self._router.route(
            self._router.attempt(tenant, target),
            lambda worker, _: worker.cleanup(target, tenant=tenant),
        )

    async def health(self) -> Health:
        try:
            workers, registry = await self._directory.workers(), "ok"
        except RuntimeUnavailable as exc:
            workers, registry = [], exc.message
        return fleet_health(
            workers,
            coordinator_id=self._id,
            registry=registry,
            missing=self._directory.missing(workers),
            presence=self._directory.presence,
            uptime_s=time.monotonic() - self._began,
        )

    # Commands

    async def execute(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        keyed = _keyed(to_run(request))
        return await self._router.route(
            self._router.attempt(tenant, _target(request), creates=True),
            lambda worker, target: worker.execute(_aimed(keyed, target), tenant=tenant),
        )

    async def check(self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT) -> Verdict:
        """By the worker that has the thread, or by any where none has it."""
        return await self._router.route(
            self._router.attempt(tenant, _target(request), creates=True),
            lambda worker, _: worker.check(request, tenant=tenant),
        )

    async def stream(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        keyed = _keyed(to_run(request))
        events = self._followed(
            self._router.attempt(tenant, _target(request), creates=True),
            lambda worker, target: worker.stream(_aimed(keyed, target), tenant=tenant),
        )
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def follow(
        self, target: Target, command_id: str, *, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        events = self._followed(
            self._router.attempt(tenant, target), _going_on(command_id, offset, tenant)
        )
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def _followed(self, attempt: Attempt, opened: _Opened) -> AsyncGenerator[CommandEvent]:
        """The events of one command, over as many connections and processes as it takes."""
        command_id: str | None = None
        while True:
            worker = await self._router.worker_of(attempt)
            assert attempt.target is not None
            connected = time.monotonic()
            try:
                async with contextlib.AsyncExitStack() as stack:
                    client = stack.enter_context(self._router.client(worker))
                    target = attempt.target
                    events = await stack.enter_async_context(closing(opened(client, target)))
                    async for event in events:
                        if isinstance(event, StartEvent):
                            if command_id is not None:
                                continue
                            command_id = event.command_id
                            attempt.target = Target(session_id=event.session_id)
                            attempt.pinned = True
                            opened = _going_on(command_id, 0, attempt.tenant)
                        elif isinstance(event, OutputEvent | GapEvent) and command_id is not None:
                            opened = _going_on(command_id, event.next_offset, attempt.tenant)
                        attempt.progress()
                        yield event
                return
            except SandboxError as exc:
                if time.monotonic() - connected > _HELD_S:
                    attempt.progress()  # A command may be silent for long.
                await self._router.after(exc, worker, attempt)

    async def result(
        self, target: Target, command_id: str, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        return await self._router.route(
            self._router.attempt(tenant, target),
            lambda worker, _: worker.result(target, command_id, tenant=tenant),
        )

    async def commands(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CommandList:
        return await self._router.route(
            self._router.attempt(tenant, target),
            lambda worker, _: worker.commands(target, tenant=tenant),
        )

    async def signal(
        self,
        target: Target,
        command_id: str,
        *,
        signal: SignalName = "TERM",
        tenant: str = DEFAULT_TENANT,
    ) -> CommandInfo:
        return await self._router.route(
            self._router.attempt(tenant, target, harmless=signal == "KILL"),
            lambda worker, _: worker.signal(target, command_id, signal=signal, tenant=tenant),
        )

    async def send_stdin(
        self,
        target: Target,
        command_id: str,
        data: bytes,
        *,
        eof: bool = False,
        offset: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> StdinReceipt:
        return await self._router.route(
            self._router.attempt(tenant, target, harmless=offset is not None),
            lambda worker, _: worker.send_stdin(
                target, command_id, data, eof=eof, offset=offset, tenant=tenant
            ),
        )

    # Files

    async def upload_file(
        self,
        target: Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> UploadResult:
        replay = Replay(chunks)
        return await self._router.route(
            self._router.attempt(tenant, target, creates=True),
            lambda worker, aim: worker.upload_file(
                aim or target, path, replay.chunks(), tenant=tenant
            ),
            resendable=lambda: replay.whole,
        )

    @contextlib.asynccontextmanager
    async def download_file(
        self, target: Target, path: str, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Download]:
        attempt = self._router.attempt(tenant, target)
        async with contextlib.AsyncExitStack() as stack:

            async def opened(worker: Sandboxes, _: Target | None) -> Download:
                return await stack.enter_async_context(
                    worker.download_file(target, path, tenant=tenant)
                )

            yield await self._router.route(attempt, opened, until=stack)

    async def list_files(
        self,
        target: Target,
        *,
        path: str = WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
        tenant: str = DEFAULT_TENANT,
    ) -> ListResult:
        return await self._router.route(
            self._router.attempt(tenant, target, creates=True),
            lambda worker, _: worker.list_files(
                target, path=path, recursive=recursive, limit=limit, tenant=tenant
            ),
        )


def _target(request: ExecuteRequest) -> Target:
    return Target(thread_id=request.thread_id, session_id=request.session_id)


def _keyed(request: ExecuteRequest) -> ExecuteRequest:
    """With a key a call can be repeated: it joins what it began."""
    key = request.idempotency_key or uuid.uuid4().hex
    return request.model_copy(update={"idempotency_key": key})


def _aimed(request: ExecuteRequest, target: Target | None) -> ExecuteRequest:
    return request.model_copy(update=dict(target)) if target else request


def _going_on(command_id: str, offset: int, tenant: str) -> _Opened:
    return lambda worker, target: worker.follow(target, command_id, offset=offset, tenant=tenant)
