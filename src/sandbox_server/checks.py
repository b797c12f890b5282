"""What keeps a server from starting because of its settings, found without opening a port or making
a box. `serve`, `serve --print-config` and `sandbox doctor` ask here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.access.known_keys import KnownKeys
from sandbox_server.access.opening import has_keys
from sandbox_server.access.tokens import Tokens
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.server import resolved
from sandbox_server.audit.log import AuditLog
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.policy.rulefile import PolicyError
from sandbox_server.providers import networks_of
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.runtime.disk_pool import DiskPool
from sandbox_server.runtime.registry import AUTO, ChosenRuntime, choose
from sandbox_server.service.gate import Gate
from sandbox_server.settings import Settings
from sandbox_server.traces import check_traces
from sandbox_server.unused import refuse_without_effect


async def check_start(settings: Settings) -> None:
    """Raises what `serve` would, as InvalidRequest or RuntimeUnavailable."""
    await check_settings(settings)
    if settings.role != "coordinator":
        async with open_runtimes(settings):
            pass


async def check_settings(settings: Settings) -> None:
    """What does not depend on the runtime. Raises InvalidRequest, RuntimeUnavailable."""
    api_keys(settings)
    check_traces(settings)
    await _refuse_open_door(settings)
    resolved(settings.host, settings.listening_port())
    if settings.role != "standalone":
        from sandbox_server.fleet.store import Store  # Slow to import, and only for a fleet.

        await Store.open(settings.redis()).close()
    if settings.role != "coordinator":
        read_gate(settings).close()
        LiveRegistry(settings.registry)
        networks_of(settings).close()
        _writable(settings.variable("state_dir"), settings.state_folder(), folder=True)
        if settings.audit_log is not None:
            at_once = settings.audit_full == "refuse"
            name = settings.variable("audit_log")
            _writable(name, settings.audit_log, folder=False, at_once=at_once)


@contextlib.asynccontextmanager
async def open_runtimes(
    settings: Settings, pool: DiskPool | None = None, metrics: Metrics = NO_METRICS
) -> AsyncIterator[list[ChosenRuntime]]:
    """The runtimes of these settings, the default one first. pool: for the disks of boxes.

    Raises InvalidRequest if the settings cannot be used with them, RuntimeUnavailable if one does
    not work here.
    """
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        options = replace(settings.runtime_options(), metrics=metrics)
        if pool is not None and not pool.no_copies:
            options = replace(options, disk_folder=pool.folder)
        for name in settings.provider_names():
            made, why = await choose(name, options)
            runtime = await stack.enter_async_context(made)
            named = runtime.name if name == AUTO else name
            opened.append(ChosenRuntime(named, runtime, why, await runtime.enforcement()))
        refuse_without_effect(settings, opened)
        yield opened


async def _refuse_open_door(settings: Settings) -> None:
    if settings.role != "worker" and settings.is_reachable() and not await has_keys(settings):
        raise InvalidRequest(
            f"listening on {settings.host} without keys: make one with `sandbox keys create`, set"
            " SANDBOX_API_KEYS=tenant:key,…, or pass --insecure"
        )


def api_keys(
    settings: Settings, *, stored: KnownKeys | None = None, tokens: Tokens | None = None
) -> ApiKeys:
    """Raises InvalidRequest; its message never contains a key."""
    try:
        return ApiKeys.parse(
            settings.api_keys.get_secret_value(),
            fleet_key=settings.fleet_key.get_secret_value(),
            of_worker=settings.role == "worker",
            stored=stored,
            tokens=tokens,
        )
    except ValueError as exc:
        raise InvalidRequest(f"{settings.variable('api_keys')}: {exc}") from None


def read_gate(
    settings: Settings, *, audit: AuditLog | None = None, metrics: Metrics = NO_METRICS
) -> Gate:
    """Raises InvalidRequest for a rule file that is missing or wrong."""
    try:
        return Gate.read(settings.policy, settings.policies, audit=audit, metrics=metrics)
    except PolicyError as exc:
        raise InvalidRequest(str(exc)) from None


def _writable(name: str, path: Path, *, folder: bool, at_once: bool = True) -> None:
    """Whether it can be written, or made. Nothing is made yet: it could get the wrong owner.
    at_once: False for what may become writable later, and is tried again then."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    as_wished = there.is_dir() if folder or there != path else not there.is_dir()
    if not (as_wished and (os.access(there, os.W_OK) or not at_once)):
        kind = "folder" if folder else "file"
        raise InvalidRequest(
            f"{name}: {path} is not a {kind} that this user can write to; name another"
        )
