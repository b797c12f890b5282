"""SandboxService: the sandboxes of this machine, for all tenants."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.operations import Ans, Handlers, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes, Tenants
from sandbox_server.audit.log import AuditLog
from sandbox_server.events.sender import Sender
from sandbox_server.registry.environments import Kernels
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.agents import options_as_before
from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.checkpoints import CheckpointHandlers
from sandbox_server.service.code import CodeHandlers, KernelsOf
from sandbox_server.service.commands import CommandHandlers
from sandbox_server.service.connections import ConnectionHandlers
from sandbox_server.service.files import FileHandlers
from sandbox_server.service.gate import Gate
from sandbox_server.service.history import HistoryHandlers
from sandbox_server.service.previews import PreviewHandlers
from sandbox_server.service.recording import Recorded
from sandbox_server.service.sessions import SessionHandlers
from sandbox_server.service.stored import StoredHandlers
from sandbox_server.service.tools import ToolHandlers
from sandbox_server.service.usage import SPENDING, UsageHandlers
from sandbox_server.service.volumes import VolumeHandlers
from sandbox_server.sessions.preview_address import PreviewSite
from sandbox_server.sessions.previews import SessionPreviews
from sandbox_server.sessions.table import AsBefore, SessionTable
from sandbox_server.storage.storage import Storage
from sandbox_server.usage.prices import Prices
from sandbox_server.volumes.volumes import Volumes


class SandboxService(Tenants):
    """All operations of callers. The worker manages boxes, the pool and the end of sessions."""

    def __init__(
        self,
        table: SessionTable,
        facts: ServiceFacts,
        *,
        health: Callable[[], models.Health],
        gate: Gate | None = None,
        audit: AuditLog | None = None,
        name_of: Callable[[str], str] = str,
        registry: LiveRegistry | None = None,
        kernels_of: KernelsOf = lambda _environment: Kernels(),
        storage: Storage | None = None,
        volumes: Volumes | None = None,
        previews_at: PreviewSite | None = None,
        prices: Prices | None = None,
        webhooks: Sender | None = None,
    ) -> None:
        """name_of: the name of an environment as it is declared, for one in another case.
        registry: by default the built-in one. volumes: those of the table's sessions.
        previews_at: None for a worker, see PreviewHandlers. prices: for the cost of usage.
        webhooks: that commands can name."""
        access = SessionAccess(table, self._as_before)
        gate = gate or Gate.default()
        self.facts = facts
        self._table = table
        self._health = health
        self._audit = audit
        self._registry = registry or LiveRegistry()
        self.stored = StoredHandlers(storage)
        self.commands = CommandHandlers(access, facts, gate, self.stored, webhooks)
        self.code = CodeHandlers(access, facts, gate, self.commands, kernels_of)
        self.files = FileHandlers(access, facts)
        self.connections = ConnectionHandlers(access)
        self.checkpoints = CheckpointHandlers(access, facts, self._registry, self.of)
        self.usage = UsageHandlers(table, prices or Prices())
        self.handlers: Handlers = {
            **self.usage.handlers,
            op.HEALTH: self._healthy,
            op.EVENTS: self._happenings,
            **SessionHandlers(
                access, facts, self._registry, name_of, self.checkpoints.options
            ).handlers,
            **self.checkpoints.handlers,
            **HistoryHandlers(access, facts, self._registry).handlers,
            **ToolHandlers(access, self._registry, self.of).handlers,
            **self.commands.handlers,
            **self.code.handlers,
            **self.files.handlers,
            **self.stored.handlers,
            **VolumeHandlers(table, facts, volumes).handlers,
            **PreviewHandlers(table, previews_at).handlers,
        }

    def _as_before(self, tenant: str) -> AsBefore:
        return lambda before: options_as_before(before, self._registry.current(), tenant)

    def __repr__(self) -> str:
        return f"<SandboxService {self.facts.worker_id} {self.facts.runtime} {self._table!r}>"

    def of(self, tenant: str) -> Sandboxes:
        inner = _OfTenant(self, tenant)
        return inner if self._audit is None else Recorded(inner, tenant, self._audit)

    @property
    def leaves(self) -> bool:
        """Whether this worker stops for good, as `sandbox drain --leave` asks."""
        return self._table.leaves

    def has(self, tenant: str, thread_id: str) -> bool:
        """Whether the thread has a live session here."""
        return self._table.live(tenant, thread_id) is not None

    async def previews_of(self, session_id: str) -> SessionPreviews | None:
        """The previews of a session, whoever it belongs to. Raises RuntimeUnavailable."""
        return self._table.previews_of(session_id)

    async def health(self) -> models.Health:
        """With what is wrong with the registry's files, of which the last good ones are in use
        then, and with the audit log."""
        health = self._health()
        checks, status = dict(health.checks), health.status
        if problem := self._registry.problem:
            checks["registry files"] = problem
        if self._audit is not None:
            checks["audit"] = self._audit.check
        if checks == health.checks:
            return health
        if status == "healthy" and any(checks[n] != "ok" for n in checks.keys() - health.checks):
            status = "degraded"
        if self._audit is not None and self._audit.refuses:
            status = "unhealthy"
        return health.model_copy(update={"checks": checks, "status": status})

    async def _healthy(self, _tenant: str, _request: models.EmptyRequest) -> models.Health:
        return await self.health()

    async def _happenings(
        self, tenant: str, request: models.HappeningsRequest
    ) -> models.HappeningList:
        return await self._table.notes.events.since(tenant, request)


class _OfTenant(Sandboxes):
    """The service as one tenant sees it."""

    def __init__(self, service: SandboxService, tenant: str) -> None:
        self._service = service
        self._tenant = tenant

    def __repr__(self) -> str:
        return f"<{self._tenant} at {self._service!r}>"

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        if operation in SPENDING:
            await self._service.usage.admit(self._tenant, request)
        answer: Ans = await self._service.handlers[operation](self._tenant, request)
        return answer

    def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        service, tenant = self._service, self._tenant
        match request:
            case models.ExecuteRequest():
                return self._within_budget(request, service.commands.stream(tenant, request))
            case models.RunCodeRequest():
                return self._within_budget(request, service.code.stream(tenant, request))
            case models.FollowCodeRequest():
                return service.code.follow(tenant, request)
            case _:
                return service.commands.follow(tenant, request)

    async def _within_budget(
        self, request: EventsRequest, events: AsyncGenerator[AnyEvent]
    ) -> AsyncGenerator[AnyEvent]:
        """Those events, or RateLimited at the first."""
        async with contextlib.aclosing(events):
            await self._service.usage.admit(self._tenant, request)
            async for event in events:
                yield event

    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        await self._service.usage.admit(self._tenant, request)
        return await self._service.files.upload(self._tenant, request, chunks)

    def download(
        self, request: models.DownloadRequest | models.ArtifactTarget
    ) -> contextlib.AbstractAsyncContextManager[Download]:
        if isinstance(request, models.ArtifactTarget):
            return self._service.stored.download(self._tenant, request)
        return self._service.files.download(self._tenant, request)

    @contextlib.asynccontextmanager
    async def connect(self, request: models.ConnectRequest) -> AsyncIterator[ByteChannel]:
        await self._service.usage.admit(self._tenant, request)
        async with self._service.connections.connect(self._tenant, request) as channel:
            yield channel
