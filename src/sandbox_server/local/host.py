"""The local service: the sandboxes of one user's programs on one machine, without a port.

One process at a time is its host. It holds a lock, owns the boxes, and lets the other processes of
the same user in by a socket in the state folder. When it ends, another takes over its boxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.sandboxes import Sandboxes, Tenants
from sandbox_server import logs
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.origin import ANY, AllowedHosts
from sandbox_server.main import open_service
from sandbox_server.private import private_listener
from sandbox_server.sessions.lease import alone
from sandbox_server.settings import Settings, load

_POOL = {"pool_size": 1, "min_pool_size": 0, "max_pool_size": 2}
"""A program that uses a sandbox or two does not need five of them ready."""
_ANY = {"host", "port", "worker_id", "api_keys", "insecure", "drain_timeout", "destroy_on_exit",
        "log_format", "log_level", *_POOL}  # fmt: skip
"""Settings that say nothing about a box: programs that differ in these share their sandboxes."""


def local_settings(**overrides: Any) -> Settings:
    """The settings in force for a local service, with a name that is its own.

    The name depends on the user and on everything a box depends on, so that programs which want
    the same boxes share them and a program that is run again finds what it left.
    """
    settings = load(**overrides)
    pool = {} if _POOL.keys() & settings.model_fields_set else _POOL
    return settings.model_copy(update={**pool, "worker_id": _name(settings)})


def socket_path(settings: Settings) -> Path:
    """Where the host of a local service lets others in."""
    return settings.state_folder() / f"{settings.name()}.sock"


@contextlib.asynccontextmanager
async def open_local(settings: Settings) -> AsyncIterator[Sandboxes]:
    """Be the host. Boxes of threads outlive it, warm ones do not.

    Raises AlreadyRunning where another process is.
    """
    with alone(settings.state_folder(), f"{settings.name()}.host"):
        logs.hand_to_logging()
        async with (
            open_service(settings) as service,
            _reachable(service, settings),
        ):
            yield service.of(SOLE_TENANT)


@contextlib.asynccontextmanager
async def _reachable(service: Tenants, settings: Settings) -> AsyncIterator[None]:
    limits = ApiLimits(upload_bytes=settings.max_upload)
    # No web page reaches a socket in a folder, whatever the other end calls it.
    app = create_app(service, limits=limits, hosts=AllowedHosts(more=[ANY]))
    # Whoever is in the middle of a call when this process ends goes on with the next host.
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    with _listener(socket_path(settings)) as listener, _silent("uvicorn.error"):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving


@contextlib.contextmanager
def _listener(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)
    try:
        with private_listener(path, backlog=128) as listener:
            yield listener
    except OSError as exc:
        raise RuntimeUnavailable(f"cannot listen on {path}: {exc}") from exc
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """What a logger is told in this thread goes nowhere: the program we are in may have a server
    of the same kind, and is not to hear of ours."""
    here = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger = logging.getLogger(name)
    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)


def _name(settings: Settings) -> str:
    of_a_box = settings.model_dump(mode="json", exclude=_ANY)
    of_a_box["state_dir"] = str(settings.state_folder().absolute())
    of_a_box["engine"] = os.environ.get("DOCKER_HOST")
    digest = hashlib.sha256(repr(sorted(of_a_box.items())).encode()).hexdigest()
    return f"local-{os.getuid()}-{digest[:8]}"
