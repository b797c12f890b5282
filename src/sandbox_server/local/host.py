"""The host of the local service: sandboxes for the programs of one user on one machine.

One process at a time is the host. It holds a lock, owns the boxes, and serves the user's other
processes on a unix socket in the state folder. When it ends, another one takes over its boxes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import structlog

from sandbox_sdk.protocol.sandboxes import Sandboxes, Tenants
from sandbox_server import logs
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.origin import ANY, AllowedHosts
from sandbox_server.api.server import AppServer, server_config, serving_privately
from sandbox_server.main import open_service
from sandbox_server.previews.opening import PreviewsOnDemand
from sandbox_server.sessions.lease import alone
from sandbox_server.settings import ANY_FOLDER, IN_PROCESS, Settings, load
from sandbox_server.unused import unused

log = structlog.get_logger()

_POOL = {"pool_size": 1, "min_pool_size": 0, "max_pool_size": 2}
"""Smaller than a server's: most programs use one or two sandboxes."""
_ANY = {"host", "port", "processes", "worker_id", "api_keys", "insecure", "drain_timeout",
        "destroy_on_exit", "endless_commands", "log_format", "log_level", "artifact_quota",
        "artifact_retention",
        "checkpoint_quota", "checkpoint_retention", "undo_quota", "volume_size", "volume_quota",
        "bind_folders", "network_connections", "network_bytes", "network_rate",
        "audit_commands", "audit_full", "audit_size", "audit_files",
        "previews", "preview_port", "preview_url", "metrics", "metrics_port",
        "kubernetes_stream", "hand_over",
        "usage_days", "usage_detail_days", "prices", "budgets", "webhooks", "webhook_attempts",
        "history_retention", "history_sessions", "history_commands", *_POOL}  # fmt: skip
"""Settings that do not affect boxes: programs that differ only in these share sandboxes."""


def local_settings(**overrides: Any) -> Settings:
    """The settings of a local service, with a worker_id derived from them.

    It depends on the user and on every setting that affects boxes, so programs that want the same
    boxes share them, and a program that is run again finds its sandboxes.
    """
    # Whatever the environment says about servers, this is none: it listens to nobody.
    settings = load(**{**overrides, "role": "standalone", "insecure": True})
    pool = {} if _POOL.keys() & settings.model_fields_set else _POOL
    # Who makes boxes for itself is the operator of its machine.
    binds = {} if "bind_folders" in settings.model_fields_set else {"bind_folders": (ANY_FOLDER,)}
    return settings.model_copy(update={**pool, **binds, "worker_id": _name(settings)})


def socket_path(settings: Settings) -> Path:
    """The socket on which the host of a local service listens."""
    return settings.state_folder() / f"{settings.name()}.sock"


@contextlib.asynccontextmanager
async def open_local(settings: Settings) -> AsyncIterator[Sandboxes]:
    """Run the local service as its host. Boxes of sessions outlive it, warm boxes do not.

    Raises AlreadyRunning if another process is the host.
    """
    with alone(settings.state_folder(), f"{settings.name()}.host"):
        logs.hand_to_logging()
        for setting, why in unused(settings, role=IN_PROCESS).items():
            # Not a warning: an environment that a server shares with programs is fine.
            log.info("setting.unused", setting=setting, why=why)
        previews = PreviewsOnDemand()
        async with (
            open_service(settings, previews_at=previews.site) as service,
            previews.of(service),
            _reachable(service, settings),
        ):
            yield service.of(SOLE_TENANT)


@contextlib.asynccontextmanager
async def _reachable(service: Tenants, settings: Settings) -> AsyncIterator[None]:
    limits = ApiLimits(upload_bytes=settings.max_upload)
    # Any Host header: web pages cannot connect to a unix socket.
    app = create_app(service, limits=limits, hosts=AllowedHosts(more=[ANY]))
    # No graceful shutdown: guests repeat their open calls on the next host.
    config = server_config(app, limits, drain_timeout_s=0)
    server = AppServer(config)
    with _silent("uvicorn.error"):
        async with serving_privately(server, socket_path(settings), backlog=128):
            yield


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Drop this thread's log records: the program that embeds us may run its own uvicorn, whose log
    must not contain ours."""
    here = threading.get_ident()

    def of_other_threads(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger = logging.getLogger(name)
    logger.addFilter(of_other_threads)
    try:
        yield
    finally:
        logger.removeFilter(of_other_threads)


def _name(settings: Settings) -> str:
    # Without defaults: a setting that a later version adds must not hide what was kept before.
    of_a_box = settings.model_dump(mode="json", exclude=_ANY, exclude_defaults=True)
    of_a_box["state_dir"] = str(settings.state_folder().absolute())
    of_a_box["engine"] = os.environ.get("DOCKER_HOST")
    if "kubernetes" in settings.provider_names():
        of_a_box["cluster"] = os.environ.get("KUBECONFIG")
    digest = hashlib.sha256(repr(sorted(of_a_box.items())).encode()).hexdigest()
    return f"local-{os.getuid()}-{digest[:8]}"
