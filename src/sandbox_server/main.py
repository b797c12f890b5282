"""Composition root: the only place that puts concrete classes together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI
from starlette.routing import Route

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server import mcp
from sandbox_server.api.app import create_app
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.origin import AllowedHosts
from sandbox_server.api.server import bound, serve_app, url_of
from sandbox_server.checks import api_keys, check_settings, open_runtime, read_gate
from sandbox_server.runtime.base import Enforcement, Runtime
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.service.audit import AuditLog
from sandbox_server.service.gate import Gate
from sandbox_server.sessions.lease import AlreadyRunning, Lease, LoneLease, alone
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.settings import DEADMAN_MARGIN_S, Settings
from sandbox_server.unused import unknown, unused
from sandbox_server.worker import Worker

log = structlog.get_logger()

MANY_FILES = 65536


OnListening = Callable[[str, Tenants], Awaitable[None]]
"""Called with the url and the tenants once the server listens; runs concurrently with it."""


@dataclass(frozen=True)
class Left:
    """What a stopped server leaves for the next one of the same name."""

    sessions: int = 0
    until: datetime | None = None
    """When their boxes end by themselves if no server adopts them."""


async def serve(settings: Settings, *, on_listening: OnListening) -> Left:
    """Serve until SIGINT or SIGTERM. Raises RuntimeUnavailable if it cannot start."""
    await check_settings(settings)
    log_unused(settings)
    limits = replace(
        _api_limits(settings), connections=min(ApiLimits.connections, _allow_many_files() // 4)
    )
    stop = asyncio.Event()
    with bound(settings.host, settings.listening_port()) as listener:
        url = url_of(listener)
        async with contextlib.AsyncExitStack() as stack:
            tenants: Tenants = await (
                stack.enter_async_context(_open_routing(settings))
                if settings.role == "coordinator"
                else stack.enter_async_context(open_service(settings, url=url, stop=stop))
            )
            await serve_app(
                make_app(tenants, settings),
                listener,
                limits=limits,
                on_listening=functools.partial(_listening, url, tenants, on_listening),
                stop=stop,
                drain_timeout_s=settings.drain_timeout,
            )
            left = await _left(tenants, settings)
    log.info("server.stopped", sessions=left.sessions, until=left.until and left.until.isoformat())
    return left


async def end_sessions(settings: Settings) -> int:
    """End the sessions that a stopped standalone server of this name has left; how many there were.

    Raises RuntimeUnavailable, also if that server still runs.
    """
    none_warm = {"pool_size": 0, "min_pool_size": 0, "destroy_on_exit": True}
    try:
        async with open_service(settings.model_copy(update=none_warm)) as service:
            return (await service.health()).active_sessions
    except AlreadyRunning:
        raise RuntimeUnavailable(
            f"the server {settings.name()} runs: end its sessions with `sandbox rm --all`"
        ) from None


async def _left(tenants: Tenants, settings: Settings) -> Left:
    if settings.destroy_on_exit or not isinstance(tenants, SandboxService):
        return Left()
    sessions = (await tenants.health()).active_sessions
    lives = timedelta(seconds=settings.idle_timeout + DEADMAN_MARGIN_S)
    return Left(sessions, datetime.now(UTC) + lives) if sessions else Left()


def make_app(tenants: Tenants, settings: Settings) -> FastAPI:
    """The HTTP app: the API, and the tools over MCP if that is installed."""
    keys, limits = api_keys(settings), _api_limits(settings)
    hosts = AllowedHosts(settings.host, [*settings.allowed_hosts, *_advertised(settings)])
    if settings.role == "worker" or not mcp.is_installed():
        return create_app(tenants, keys=keys, limits=limits, hosts=hosts)
    tools = mcp.Mcp(tenants, tenant=keys.tenant)
    app = create_app(tenants, keys=keys, limits=limits, hosts=hosts, lifespan=tools.lifespan)
    app.router.routes.append(Route("/mcp", tools))
    return app


def _api_limits(settings: Settings) -> ApiLimits:
    return ApiLimits(upload_bytes=settings.max_upload)


def _advertised(settings: Settings) -> list[str]:
    """The host name by which coordinators reach a worker."""
    host = urlsplit(settings.advertise).hostname
    return [host] if host else []


async def _listening(url: str, tenants: Tenants, then: OnListening) -> None:
    log.info("server.listening", url=url)
    await then(url, tenants)


@contextlib.asynccontextmanager
async def open_service(
    settings: Settings,
    *,
    url: str = "",
    stop: asyncio.Event | None = None,
) -> AsyncIterator[SandboxService]:
    """A running service on the configured runtime. The boxes of sessions outlive it.

    Raises InvalidRequest for an invalid rule file.
    """
    with open_gate(settings) as gate:
        service = _open_service(settings, gate, url=url, stop=stop)
        async with service as opened:
            yield opened


@contextlib.contextmanager
def open_gate(settings: Settings) -> Iterator[Gate]:
    with contextlib.ExitStack() as stack:
        audit = None
        if settings.audit_log is not None:
            audit = stack.enter_context(AuditLog(settings.audit_log))
        gate = read_gate(settings, audit=audit)
        stack.callback(gate.close)
        yield gate
        log.info("policy.verdicts", allowed=gate.allowed, rejected=dict(gate.rejected))


@contextlib.asynccontextmanager
async def _open_service(
    settings: Settings, gate: Gate, *, url: str, stop: asyncio.Event | None
) -> AsyncIterator[SandboxService]:
    state = settings.state_folder()
    async with open_runtime(settings) as chosen:
        runtime, why = chosen.runtime, chosen.why
        log.info("runtime.chosen", runtime=runtime.name, why=why)
        for limit, lack in chosen.enforcement.missing().items():
            log.warning("limit.not_enforced", limit=limit, why=lack)
        if settings.role == "worker":
            from sandbox_server.fleet.opening import worker_standing

            stop = stop or asyncio.Event()
            standing = worker_standing(settings, state, url, runtime.name, stop)
        else:
            standing = _alone(settings, state)
        async with standing as (registry, lease):
            worker = Worker(
                runtime,
                settings.box_spec(settings.name()),
                registry,
                lease,
                role=settings.role,
                pool=settings.pool(),
                environments=_environments(settings, runtime),
                idle_timeout_s=settings.idle_timeout,
                capacity=settings.max_sessions,
                destroy_on_exit=settings.destroy_on_exit,
            )
            async with worker:
                await lease.serve(load=worker.load, on_gap=worker.table.vouch)
                facts = ServiceFacts(
                    worker_id=settings.name(),
                    runtime=runtime.name,
                    why=why,
                    limits=_limits(settings, chosen.enforcement),
                )
                yield SandboxService(worker.table, facts, health=worker.health, gate=gate)


def _environments(settings: Settings, runtime: Runtime) -> dict[str, str]:
    """Without images, an environment only matters if it has its own policy."""
    if runtime.has_images:
        return settings.environments
    return {n: image for n, image in settings.environments.items() if n in settings.policies}


def log_unused(settings: Settings) -> None:
    for setting, why in {**unused(settings), **unknown(os.environ)}.items():
        log.warning("setting.unused", setting=setting, why=why)


Standing = tuple[Registry, Lease]
"""A worker's registry, and the lease that makes it the only owner of its sessions."""


@contextlib.asynccontextmanager
async def _alone(settings: Settings, state: Path) -> AsyncIterator[Standing]:
    name = settings.name()
    with alone(state, name):
        registry = SqliteRegistry(state / f"{name}.sqlite", worker=name)
        try:
            yield registry, LoneLease(name, registry.next_epoch())
        finally:
            await registry.close()


def _open_routing(settings: Settings) -> contextlib.AbstractAsyncContextManager[Tenants]:
    from sandbox_server.fleet.opening import open_routing

    return open_routing(settings)


def _limits(settings: Settings, enforcement: Enforcement) -> models.Limits:
    return models.Limits(
        memory_bytes=settings.memory_limit,
        cpus=settings.cpu_limit,
        pids=settings.pids_limit,
        disk_bytes=settings.disk_limit,
        command_timeout_s=settings.command_timeout,
        output_limit_bytes=settings.output_limit,
        upload_limit_bytes=settings.max_upload,
        network=settings.network,
        not_enforced=enforcement.missing(),
    )


def _allow_many_files() -> int:
    """Raise the limit of open files and return it: a session takes a few descriptors, and the
    usual 1,024 are used up at about 300 sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MANY_FILES if soft == resource.RLIM_INFINITY else soft
