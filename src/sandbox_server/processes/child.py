"""One process of a server that has several."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from starlette.types import Receive, Scope, Send

from sandbox_sdk.backends.remote import RemoteTenants
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.access.limiter import MemoryLimiter
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.errors import error_response
from sandbox_server.api.handover import Handover
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.metrics import serving_metrics
from sandbox_server.api.origin import ANY, AllowedHosts
from sandbox_server.api.server import (
    NestedServer,
    serve_app,
    server_config,
    serving_privately,
    url_of,
)
from sandbox_server.fleet.router import WorkerClient
from sandbox_server.main import (
    Left,
    log_stopped,
    make_app,
    open_access,
    open_registry,
    open_service,
    server_limits,
    sessions_left,
    traffic_tenant,
)
from sandbox_server.metrics.opening import Measured, measuring
from sandbox_server.previews.opening import PreviewPort, serving_previews
from sandbox_server.private import short_path
from sandbox_server.processes.metrics import of_all
from sandbox_server.processes.routing import Processes, ProcessRouter, ProcessTenants
from sandbox_server.processes.supervisor import Report
from sandbox_server.processes.where import MCP_PROCESS, WhereTo
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.sessions.lease import AlreadyRunning, alone
from sandbox_server.sessions.share import Occupancy, Share
from sandbox_server.settings import Settings
from sandbox_server.stopping import stoppable
from sandbox_server.traces import tracing_to

log = structlog.get_logger()

PREVIEW_PROCESS = 0
"""Has all connections of previews, and reaches the boxes of the others through them."""
_PREDECESSOR_S = 5.0
"""How long a killed predecessor may take to be gone."""
_LOOK_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What the parent has made for all processes before it started them."""

    listeners: list[socket.socket]
    """One for each process, on the same port: the kernel deals connections out."""
    arriving: list[socket.socket]
    leaving: list[socket.socket]
    """For handing connections over, see Handover."""
    counts: memoryview[int]
    """See Occupancy."""
    up: memoryview[int]
    previews: PreviewPort
    """Served by one of them."""
    metrics: socket.socket | None
    """For the port of their own that metrics may have; served by the same process."""
    limiter: MemoryLimiter | None = None
    """Where callers have limits."""

    def keep_only(self, index: int) -> None:
        """Close what is for other processes, so that it ends with them."""
        for number, (listener, arriving) in enumerate(
            zip(self.listeners, self.arriving, strict=True)
        ):
            if number != index:
                listener.close()
                arriving.close()
        if index != PREVIEW_PROCESS:
            self.previews.close()
            if self.metrics is not None:
                self.metrics.close()


def part_of(settings: Settings, count: int) -> Settings:
    """The settings of one process. Pools are divided, rounded up, so that each has boxes ready."""
    names = ("pool_size", "min_pool_size", "max_pool_size")
    return settings.model_copy(
        update={name: math.ceil(getattr(settings, name) / count) for name in names}
    )


async def serve_share(settings: Settings, share: Share, shared: Shared, report: Report) -> None:
    """Serve the sessions of a share until SIGTERM."""
    shared.keep_only(share.index)
    stop, left = asyncio.Event(), Left()
    with stoppable(stop, finish=settings.destroy_on_exit):
        await _predecessor_gone(settings.state_folder(), share.owner)
        left = await _serve_share(settings, share, shared, report, stop)
    tell_left(left, report)


async def _serve_share(
    settings: Settings, share: Share, shared: Shared, report: Report, stop: asyncio.Event
) -> Left:
    state, limits = settings.state_folder(), server_limits(settings)
    listener = shared.listeners[share.index]
    limiter = None if shared.limiter is None else shared.limiter.of_process(share.index)
    occupancy = Occupancy(
        settings.max_sessions, shared.counts, index=share.index, memory=settings.total_memory
    )
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(tracing_to(settings))
        own = await stack.enter_async_context(measuring(settings, process=share.index))
        service = await stack.enter_async_context(
            open_service(
                part_of(settings, share.count),
                stop=stop,
                share=share,
                occupancy=occupancy,
                previews_at=shared.previews.site,
                limiter=limiter,
                metrics=own.metrics,
            )
        )
        path, drain_s = _socket(state, share), settings.drain_timeout
        await stack.enter_async_context(
            _reachable(service, path, limits, own, drain_timeout_s=drain_s)
        )
        sockets = [_socket(state, share.of(index)) for index in range(share.count)]
        measured = Measured(own.metrics, own.told and of_all(own.told, sockets, share.index))
        processes, router = await stack.enter_async_context(
            _routing(settings, share, state, service, sockets)
        )
        tenants = ProcessTenants(processes, router, service, capacity=settings.max_sessions)
        keys = await stack.enter_async_context(open_access(settings))
        if share.index == PREVIEW_PROCESS:
            serving = serving_previews(tenants, shared.previews, traffic_tenant(settings, keys))
            await stack.enter_async_context(serving)
            await stack.enter_async_context(serving_metrics(measured.told, shared.metrics))
        handover = Handover(
            share.index,
            shared.arriving[share.index],
            shared.leaving,
            shared.up,
            WhereTo(processes, service, keys),
        )

        async def tell() -> None:
            report({"ready": told_facts(service.facts)})
            log.info("server.listening", url=url_of(listener))

        await serve_app(
            make_app(
                tenants,
                settings,
                keys,
                limiter,
                elsewhere=None if share.index == MCP_PROCESS else _mcp_elsewhere,
                measured=measured,
                previews_at=shared.previews.site,
            ),
            listener,
            limits=limits,
            on_listening=tell,
            stop=stop,
            drain_timeout_s=settings.drain_timeout,
            handover=handover,
        )
        return await sessions_left(service, settings)


def told_facts(facts: ServiceFacts) -> dict[str, Any]:
    """As JSON values."""
    return {
        "runtime": facts.runtime,
        "why": facts.why,
        "limits": facts.limits.model_dump(mode="json"),
        "providers": list(facts.by_provider),
    }


def tell_left(left: Left, report: Report) -> None:
    until = left.until and left.until.isoformat()
    report({"left": left.sessions, "until": until, "for_good": left.for_good})
    log_stopped(left)


async def _predecessor_gone(state: Path, owner: str) -> None:
    """Wait for the process of a killed server whose place this one takes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PREDECESSOR_S):
            while True:
                try:
                    with alone(state, owner):
                        return
                except AlreadyRunning:
                    await asyncio.sleep(_LOOK_S)


def _socket(state: Path, share: Share) -> Path:
    """Where other processes reach this one."""
    return state / f"{share.owner}.sock"


@contextlib.asynccontextmanager
async def _routing(
    settings: Settings, share: Share, state: Path, service: SandboxService, sockets: list[Path]
) -> AsyncIterator[tuple[Processes, ProcessRouter]]:
    async with contextlib.AsyncExitStack() as stack:
        registry = open_registry(share, state)
        stack.push_async_callback(registry.close)
        urls = [f"unix://{stack.enter_context(short_path(path))}" for path in sockets]

        def connect(url: str) -> WorkerClient:
            if url == urls[share.index]:
                return _Here(service)
            return RemoteTenants(url, fleet_key=None)

        processes = Processes(registry, share, urls)
        router = ProcessRouter(processes, connect, patience_s=settings.patience)
        yield processes, await stack.enter_async_context(router)


class _Here:
    """A WorkerClient of this process itself."""

    def __init__(self, service: SandboxService) -> None:
        self._service = service

    def of(self, tenant: str) -> Sandboxes:
        return self._service.of(tenant)

    async def close(self) -> None:
        """No-op: there is no connection."""


@contextlib.asynccontextmanager
async def _reachable(
    service: SandboxService,
    path: Path,
    limits: ApiLimits,
    own: Measured,
    *,
    drain_timeout_s: float,
) -> AsyncIterator[None]:
    """Serve the other processes, which say for which tenant a call is."""
    keys = ApiKeys([], of_worker=True)
    # Any Host header: web pages cannot connect to a unix socket. Its requests are not measured:
    # the process that passes them on does so.
    hosts = AllowedHosts(more=[ANY])
    app = create_app(service, keys=keys, limits=limits, hosts=hosts, told=own.told)
    server = NestedServer(server_config(app, limits, drain_timeout_s=drain_timeout_s))
    async with serving_privately(server, path, backlog=2048):
        yield


async def _mcp_elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Connections with calls over MCP are passed on, unless that process is away."""
    away = RuntimeUnavailable(
        "the process for MCP is being restarted; retry in 1 s", retry_after_s=1
    )
    await error_response(away, scope["state"]["request_id"])(scope, receive, send)
