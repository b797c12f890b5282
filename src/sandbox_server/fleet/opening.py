"""Builds the fleet parts of a worker and of a coordinator from the settings.

Imported only by servers in a fleet: loading the Redis client takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog

from sandbox_sdk.backends.remote import RemoteTenants
from sandbox_server import __version__
from sandbox_server.events.log import EventLog
from sandbox_server.events.sender import open_webhooks
from sandbox_server.fleet.all_workers import FleetUsage
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.router import Router
from sandbox_server.fleet.routing import RoutedTenants
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.stored import RedisHistory, RedisUsage
from sandbox_server.fleet.workers import Phase, Worker
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.preview_address import PreviewSite
from sandbox_server.sessions.registry import Registry
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.settings import Settings

log = structlog.get_logger()

_OF_DEADMAN = 0.75
"""Boxes hear from their worker after a quarter of the time at which they end without."""


@contextlib.asynccontextmanager
async def worker_standing(
    settings: Settings,
    state: Path,
    url: str,
    providers: Sequence[str],
    stop: asyncio.Event,
    metrics: Metrics = NO_METRICS,
) -> AsyncIterator[tuple[Registry, Lease]]:
    card = Worker(
        id=settings.name(),
        url=settings.advertise or url,
        capacity=settings.max_sessions,
        phase=Phase.STARTING,
        version=__version__,
        runtime=providers[0],
        providers=tuple(providers),
    )
    if settings.lease + settings.grace > _OF_DEADMAN * settings.box_spec(card.id).deadman_s:
        log.warning("grace.too_long", grace_s=settings.grace, why="boxes end by themselves before")
    async with _opened(settings, metrics) as store:
        lease = RedisLease(
            store,
            card,
            lease_s=settings.lease,
            state_dir=state,
            stop=stop.set,
            leaves=settings.destroy_on_exit,
            hands_over=settings.hand_over,
        )
        index = SessionIndex(store, lease_s=settings.lease, grace_s=settings.grace)
        async with lease:
            local = SqliteRegistry(state / f"{card.id}.sqlite", worker=card.id)
            try:
                history = RedisHistory(store, settings.stored().history)
                registry = RedisRegistry(
                    index,
                    lease,
                    ledger=local.ledger,
                    previews=local.previews,
                    history=history,
                    usage=RedisUsage(store, settings.usage_kept()),
                )
                yield registry, lease
            finally:
                await local.close()


@contextlib.asynccontextmanager
async def open_routing(
    settings: Settings, *, previews_at: PreviewSite | None = None, metrics: Metrics = NO_METRICS
) -> AsyncIterator[RoutedTenants]:
    """The sandboxes of all workers, for a coordinator to serve."""
    events = EventLog(settings.name())

    def connect(url: str) -> RemoteTenants:
        return RemoteTenants(url, fleet_key=settings.fleet_key.get_secret_value() or None)

    async with (
        open_webhooks(
            settings.webhooks,
            events,
            settings.state_folder(),
            settings.name(),
            attempts=settings.webhook_attempts,
        ),
        _opened(settings, metrics) as store,
    ):
        index = SessionIndex(store, lease_s=settings.lease, grace_s=settings.grace)
        directory = Directory(index, grace_s=settings.grace, only=settings.workers)
        async with Router(
            directory, connect, patience_s=settings.patience, metrics=metrics
        ) as router:
            history = RedisHistory(store, settings.stored().history)
            yield RoutedTenants(
                directory,
                router,
                coordinator_id=settings.name(),
                history=history,
                previews_at=previews_at,
                usage=FleetUsage(RedisUsage(store, settings.usage_kept()), settings.priced()),
                events=events,
            )


def _opened(settings: Settings, metrics: Metrics) -> Store:
    return Store.open(settings.redis(), namespace=settings.redis_namespace, metrics=metrics)
