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
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server import mcp
from sandbox_server.access.limited import Admission
from sandbox_server.access.limiter import Limiter
from sandbox_server.access.opening import (
    has_token_secret,
    limit_rules,
    open_keys,
    open_limiter,
    open_tokens,
    token_secret,
)
from sandbox_server.access.session_limits import SessionLimits
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.e2b import E2bDoor
from sandbox_server.api.e2b.tokens import AccessTokens, TrafficTokens
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.metrics import bind_metrics, serving_metrics
from sandbox_server.api.origin import AllowedHosts
from sandbox_server.api.route import Served
from sandbox_server.api.server import bound, serve_app, url_of
from sandbox_server.audit.log import AuditLog
from sandbox_server.checkpoints.opening import open_checkpoints, open_points
from sandbox_server.checks import api_keys, check_settings, open_runtimes, read_gate
from sandbox_server.console import install_console
from sandbox_server.environments.catalogue import LiveEnvironments, open_builds
from sandbox_server.events.log import budget_teller, limit_teller
from sandbox_server.events.sender import open_webhooks
from sandbox_server.metrics.opening import UNMEASURED, Measured, measuring
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.network.presets import PresetWatch
from sandbox_server.previews.opening import PreviewPort, bind_previews, serving_previews
from sandbox_server.previews.server import TenantOf, no_tenant
from sandbox_server.providers import facts_of, networks_of, pool_of, providers_of, rules_of
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.runtime.disk_pool import open_pool
from sandbox_server.service import SandboxService
from sandbox_server.service.gate import Gate
from sandbox_server.service.usage import storing
from sandbox_server.sessions.counting import Usage
from sandbox_server.sessions.lease import AlreadyRunning, Lease, LoneLease, alone
from sandbox_server.sessions.preview_address import PreviewSite
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.share import Occupancy, Share
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.settings import DEADMAN_MARGIN_S, Settings
from sandbox_server.stopping import stoppable
from sandbox_server.storage.storage import open_storage
from sandbox_server.traces import tracing_to
from sandbox_server.unused import unknown, unused
from sandbox_server.usage.ledger import UsageLedger
from sandbox_server.volumes.volumes import Volumes
from sandbox_server.worker import Worker

if TYPE_CHECKING:
    from sandbox_server.fleet.routing import RoutedTenants  # Slow to import, and only for a fleet.

log = structlog.get_logger()

MANY_FILES = 65536


OnListening = Callable[[str, Tenants, PreviewPort | None], Awaitable[None]]
"""Called with the url, the tenants and where previews are once the server listens; runs
concurrently with it."""


@dataclass(frozen=True)
class Left:
    """What a stopped server leaves for the next one of the same name."""

    sessions: int = 0
    until: datetime | None = None
    """When their boxes end by themselves if no server adopts them."""
    for_good: bool = False
    """Whether there is to be no next one."""


async def serve(settings: Settings, *, on_listening: OnListening) -> Left:
    """Serve until SIGINT or SIGTERM. Raises RuntimeUnavailable if it cannot start."""
    stop, left = asyncio.Event(), Left()
    with stoppable(stop, finish=settings.destroy_on_exit):
        await check_settings(settings)
        log_unused(settings)
        left = await _serve(settings, on_listening, stop)
    log_stopped(left)
    return left


async def _serve(settings: Settings, on_listening: OnListening, stop: asyncio.Event) -> Left:
    limits = server_limits(settings)
    with bound(settings.host, settings.listening_port()) as listener:
        url = url_of(listener)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(tracing_to(settings))
            measured = await stack.enter_async_context(measuring(settings))
            metrics_port = stack.enter_context(bind_metrics(settings))
            previews = None
            if settings.role != "worker":  # Their coordinators have them.
                previews = stack.enter_context(bind_previews(settings, listener.getsockname()[1]))
            site = None if previews is None else previews.site
            limiter = await stack.enter_async_context(open_limiter(settings))
            tenants: RoutedTenants | SandboxService = await (
                stack.enter_async_context(_open_routing(settings, site, limiter, measured.metrics))
                if settings.role == "coordinator"
                else stack.enter_async_context(
                    open_service(
                        settings,
                        url=url,
                        stop=stop,
                        previews_at=site,
                        limiter=limiter,
                        metrics=measured.metrics,
                    )
                )
            )
            await stack.enter_async_context(serving_metrics(measured.told, metrics_port))
            keys = await stack.enter_async_context(open_access(settings))
            if previews is not None:
                serving = serving_previews(tenants, previews, traffic_tenant(settings, keys))
                await stack.enter_async_context(serving)
            await serve_app(
                make_app(tenants, settings, keys, limiter, measured=measured, previews_at=site),
                listener,
                limits=limits,
                on_listening=functools.partial(_listening, url, tenants, previews, on_listening),
                stop=stop,
                drain_timeout_s=settings.drain_timeout,
            )
            return await sessions_left(tenants, settings)


def log_stopped(left: Left) -> None:
    log.info("server.stopped", sessions=left.sessions, until=left.until and left.until.isoformat())


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


async def sessions_left(tenants: Tenants, settings: Settings) -> Left:
    """What a server leaves that stops now."""
    if settings.destroy_on_exit or not isinstance(tenants, SandboxService):
        return Left()
    if tenants.leaves:
        return Left(for_good=True)
    sessions = (await tenants.health()).active_sessions
    lives = timedelta(seconds=settings.idle_timeout + DEADMAN_MARGIN_S)
    return Left(sessions, datetime.now(UTC) + lives) if sessions else Left()


@contextlib.asynccontextmanager
async def open_access(settings: Settings) -> AsyncIterator[ApiKeys]:
    """Who may call: the keys of the settings, those that are stored, and tokens."""
    async with open_keys(settings) as stored, open_tokens(settings) as tokens:
        yield api_keys(settings, stored=stored, tokens=tokens)


def traffic_tenant(settings: Settings, keys: ApiKeys) -> TenantOf:
    """Who shows a token for ports that are not public."""
    if not has_token_secret(settings):
        return no_tenant
    tokens = AccessTokens(functools.partial(token_secret, settings))
    return TrafficTokens(tokens, keys).tenant_of


def make_app(
    tenants: Tenants,
    settings: Settings,
    keys: ApiKeys | None = None,
    limiter: Limiter | None = None,
    *,
    elsewhere: ASGIApp | None = None,
    measured: Measured = UNMEASURED,
    previews_at: PreviewSite | None = None,
) -> FastAPI:
    """The HTTP app: the API, the console, and the tools over MCP if that is installed.

    keys: if there are more than those of the settings. limiter: where callers have limits.
    elsewhere: answers calls over MCP in a process whose connections of that kind another one has.
    previews_at: where ports of boxes are seen.
    """
    served = Served(tenants, keys or api_keys(settings), _api_limits(settings))
    hosts = AllowedHosts(settings.host, [*settings.allowed_hosts, *_advertised(settings)])
    make = functools.partial(
        create_app,
        tenants,
        keys=served.keys,
        limits=served.limits,
        hosts=hosts,
        metrics=measured.metrics,
        told=measured.told,
    )
    if settings.role == "worker":  # Its coordinators have counted already.
        return make()
    if has_token_secret(settings):
        door = E2bDoor(functools.partial(token_secret, settings), previews_at)
        make = functools.partial(make, e2b=door)
    if limiter is not None:
        admission = Admission(limit_rules(settings), limiter)
        served = replace(served, admission=admission)
        make = functools.partial(make, admission=admission)
    if not mcp.is_installed():
        app = make()
    elif elsewhere is not None:
        app = make()
        app.router.routes.append(Route("/mcp", elsewhere))
    else:
        tools = mcp.Mcp(served.of_headers)
        app = make(lifespan=tools.lifespan)
        app.router.routes.append(Route("/mcp", tools))
    if settings.console:
        install_console(app, served)
    return app


def server_limits(settings: Settings) -> ApiLimits:
    """With as many connections as this process can have open files for."""
    connections = min(ApiLimits.connections, _allow_many_files() // 4)
    return replace(_api_limits(settings), connections=connections)


def _api_limits(settings: Settings) -> ApiLimits:
    return ApiLimits(upload_bytes=settings.max_upload)


def _advertised(settings: Settings) -> list[str]:
    """The host name by which coordinators reach a worker."""
    host = urlsplit(settings.advertise).hostname
    return [host] if host else []


async def _listening(
    url: str, tenants: Tenants, previews: PreviewPort | None, then: OnListening
) -> None:
    log.info("server.listening", url=url)
    await then(url, tenants, previews)


@contextlib.contextmanager
def open_audit(settings: Settings, metrics: Metrics = NO_METRICS) -> Iterator[AuditLog | None]:
    if settings.audit_log is None:
        yield None
        return
    with AuditLog(settings.audit_log, settings.audit(), metrics) as audit:
        yield audit


@contextlib.contextmanager
def open_gate(
    settings: Settings, audit: AuditLog | None = None, metrics: Metrics = NO_METRICS
) -> Iterator[Gate]:
    with contextlib.ExitStack() as stack:
        gate = read_gate(settings, audit=audit, metrics=metrics)
        stack.callback(gate.close)
        yield gate
        log.info("policy.verdicts", allowed=gate.allowed, rejected=dict(gate.rejected))


@contextlib.asynccontextmanager
async def open_service(
    settings: Settings,
    *,
    url: str = "",
    stop: asyncio.Event | None = None,
    share: Share | None = None,
    occupancy: Occupancy | None = None,
    previews_at: PreviewSite | None = None,
    limiter: Limiter | None = None,
    metrics: Metrics = NO_METRICS,
) -> AsyncIterator[SandboxService]:
    """A running service on the configured runtime. The boxes of sessions outlive it.

    share and occupancy: of a process that is one of several. previews_at: None for a worker.
    limiter: where tenants have limits.
    Raises InvalidRequest for an invalid rule file or registry.
    """
    share = share or Share(name=settings.name())
    declared = LiveRegistry(settings.registry)
    state = settings.state_folder()
    async with contextlib.AsyncExitStack() as stack:
        audit = stack.enter_context(open_audit(settings, metrics))
        gate = stack.enter_context(open_gate(settings, audit, metrics))
        pool = stack.enter_context(open_pool(state, wanted=settings.disk_pool))
        opened = await stack.enter_async_context(open_runtimes(settings, pool, metrics))
        log.info("disks.chosen", copies=not pool.no_copies, why=pool.no_copies)
        for each in opened:
            log.info("runtime.chosen", runtime=each.name, why=each.why)
            for limit, lack in each.enforcement.missing().items():
                log.warning("limit.not_enforced", runtime=each.name, limit=limit, why=lack)
        has_images = any(each.runtime.has_images for each in opened)
        environments = LiveEnvironments(declared, settings, has_images=has_images)
        networks = networks_of(settings, opened, audit, metrics)
        stack.callback(networks.close)
        await stack.enter_async_context(PresetWatch(settings.network_presets, networks))
        await asyncio.to_thread(networks.warm, list(environments.values()))
        rules = rules_of(settings, opened, environments, networks)
        if settings.role == "worker":
            from sandbox_server.fleet.opening import worker_standing

            stop = stop or asyncio.Event()
            names = [each.name for each in opened]
            standing = worker_standing(settings, state, url, names, stop, metrics)
        else:
            standing = _alone(share, state)
        capacity = Occupancy(settings.max_sessions, memory=settings.total_memory)
        builds = {
            each.name: await stack.enter_async_context(open_builds(each.runtime, state))
            for each in opened
        }
        default, *others = providers_of(
            settings, opened, share.owner, rules=rules, environments=environments, builds=builds
        )
        registry, lease = await stack.enter_async_context(standing)
        storage = await stack.enter_async_context(
            open_storage(state, share.name, settings.stored(), history=registry.history)
        )
        checkpoints = await stack.enter_async_context(
            open_checkpoints(
                settings.checkpoint_store(),
                state / f"{share.name}.checkpoints",
                images=None if pool.no_copies else pool.images / share.name,
                no_images=pool.no_copies,
            )
        )
        points = await stack.enter_async_context(
            open_points(
                None if pool.no_copies else pool.images / f"{share.name}.points",
                why_not=pool.no_copies,
                most_bytes=settings.undo_quota,
                retention_s=settings.checkpoint_retention,
            )
        )
        # All servers of this machine have the same, but workers, which are found by their names.
        named = f"{share.name}.volumes" if settings.role == "worker" else "volumes"
        volumes = Volumes.open(
            state / named,
            size=settings.volume_size,
            quota=settings.volume_quota,
            binds=settings.binds(),
        )
        quota = None
        if limiter is not None:
            limits = SessionLimits(limit_rules(settings), limiter)
            quota = await stack.enter_async_context(limits)
        ledger = UsageLedger(state / f"{share.name}.usage", settings.usage_kept())
        stack.callback(ledger.close)
        usage = Usage(
            ledger,
            budgets=settings.budgeted(),
            shared=registry.usage,
            stored=storing(storage, checkpoints, volumes, together="://" in settings.checkpoints),
        )
        worker = Worker(
            default.runtime,
            default.spec,
            registry,
            lease,
            role=settings.role,
            pool=pool_of(settings, default.runtime),
            environments=default.environments,
            idle_timeout_s=settings.idle_timeout,
            capacity=occupancy or capacity,
            destroy_on_exit=settings.destroy_on_exit,
            owners=registry.owners(),
            name=default.name,
            others=others,
            rules=rules,
            journal=storage.journal,
            checkpoints=checkpoints,
            points=points,
            volumes=volumes,
            networks=networks,
            quota=quota,
            metrics=metrics,
            usage=usage,
        )
        if quota is not None:
            quota.live = worker.table.made_by
        notes = worker.table.notes
        usage.on_budget = budget_teller(notes.events)
        if limiter is not None:
            limiter.on_reached = limit_teller(notes.events)
        webhooks = await stack.enter_async_context(
            open_webhooks(
                settings.webhooks,
                notes.events,
                state,
                share.name,
                attempts=settings.webhook_attempts,
            )
        )
        if webhooks is not None:
            notes.promised = webhooks.promised
        async with worker:
            await lease.serve(load=worker.load, on_gap=worker.table.vouch)
            facts = facts_of(settings, opened, share.owner, networks)
            yield SandboxService(
                worker.table,
                facts,
                health=worker.health,
                gate=gate,
                audit=audit,
                name_of=environments.name_of,
                kernels_of=environments.kernels_of,
                registry=declared,
                storage=storage,
                volumes=volumes,
                previews_at=previews_at,
                prices=settings.priced(),
                webhooks=webhooks,
            )


def log_unused(settings: Settings) -> None:
    for setting, why in {**unused(settings), **unknown(os.environ)}.items():
        log.warning("setting.unused", setting=setting, why=why)


Standing = tuple[Registry, Lease]
"""A worker's registry, and the lease that makes it the only owner of its sessions."""


@contextlib.asynccontextmanager
async def _alone(share: Share, state: Path) -> AsyncIterator[Standing]:
    with alone(state, share.owner):
        registry = open_registry(share, state)
        try:
            yield registry, LoneLease(share.owner, registry.next_epoch())
        finally:
            await registry.close()


def open_registry(share: Share, state: Path) -> SqliteRegistry:
    """That of a standalone server, shared by its processes. Close it."""
    return SqliteRegistry(state / f"{share.name}.sqlite", share=share)


@contextlib.asynccontextmanager
async def _open_routing(
    settings: Settings, previews_at: PreviewSite | None, limiter: Limiter | None, metrics: Metrics
) -> AsyncIterator[RoutedTenants]:
    from sandbox_server.fleet.opening import open_routing

    async with open_routing(settings, previews_at=previews_at, metrics=metrics) as tenants:
        if limiter is not None and tenants.all.events is not None:
            limiter.on_reached = limit_teller(tenants.all.events)
        yield tenants


def _allow_many_files() -> int:
    """Raise the limit of open files and return it: a session takes a few descriptors, and the
    usual 1,024 are used up at about 300 sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MANY_FILES if soft == resource.RLIM_INFINITY else soft
