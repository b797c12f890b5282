"""SandboxService: the sandboxes of this machine, for all tenants."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    DownloadRequest,
    EmptyRequest,
    ExecuteRequest,
    FollowRequest,
    Health,
    UploadRequest,
    UploadResult,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes, Tenants
from sandbox_server.service.access import Handlers, SessionAccess
from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.commands import CommandHandlers
from sandbox_server.service.files import FileHandlers
from sandbox_server.service.gate import Gate
from sandbox_server.service.sessions import SessionHandlers
from sandbox_server.sessions.table import SessionTable


class SandboxService(Tenants):
    """All operations of callers. The worker manages boxes, the pool and the end of sessions."""

    def __init__(
        self,
        table: SessionTable,
        facts: ServiceFacts,
        *,
        health: Callable[[], Health],
        gate: Gate | None = None,
    ) -> None:
        access = SessionAccess(table)
        self.facts = facts
        self._table = table
        self._health = health
        self.commands = CommandHandlers(access, facts, gate or Gate.default())
        self.files = FileHandlers(access, facts)
        self.handlers: Handlers = {
            op.HEALTH: self._healthy,
            **SessionHandlers(access, facts).handlers,
            **self.commands.handlers,
            **self.files.handlers,
        }

    def __repr__(self) -> str:
        return f"<SandboxService {self.facts.worker_id} {self.facts.runtime} {self._table!r}>"

    def of(self, tenant: str) -> Sandboxes:
        return _OfTenant(self, tenant)

    async def health(self) -> Health:
        return self._health()

    async def _healthy(self, _tenant: str, _request: EmptyRequest) -> Health:
        return self._health()


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
            return self._service.commands.stream(self._tenant, request)
        return self._service.commands.follow(self._tenant, request)

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        return await self._service.files.upload(self._tenant, request, chunks)

    def download(
        self, request: DownloadRequest
    ) -> contextlib.AbstractAsyncContextManager[Download]:
        return self._service.files.download(self._tenant, request)
