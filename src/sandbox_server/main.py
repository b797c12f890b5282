"""Where concrete classes are put together, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.routing import Route

from sandbox_sdk.backends.base import Sandboxes
from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.limits import ApiLimits
from sandbox_server.runtime.base import Enforcement
from sandbox_server.runtime.choose import choose
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.settings import Settings
from sandbox_server.worker import Worker

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def open_service(
    settings: Settings, *, keep_warm: bool = True
) -> AsyncIterator[SandboxService]:
    """A running service on the best runtime there is. Leaving lets go of it; boxes live on, those
    nobody has used yet only where they are to be kept warm."""
    state = settings.state_folder()
    runtime, why = await choose(
        settings.runtime, engine_runtime=settings.docker_runtime, state_dir=state
    )
    async with runtime:
        enforcement = await runtime.enforcement()
        log.info("runtime.chosen", runtime=runtime.name, why=why)
        for limit, lack in enforcement.missing().items():
            log.warning("limit.not_enforced", limit=limit, why=lack)
        worker = Worker(
            runtime,
            settings.box_spec(settings.name()),
            pool=settings.pool(),
            environments=settings.environments,
            idle_timeout_s=settings.idle_timeout,
            capacity=settings.max_sessions,
            state_dir=state,
            destroy_on_exit=settings.destroy_on_exit,
            keep_warm=keep_warm,
        )
        async with worker:
            facts = ServiceFacts(
                worker_id=settings.name(),
                runtime=runtime.name,
                why=why,
                limits=_limits(settings, enforcement),
            )
            yield SandboxService(worker.table, facts, health=worker.health)


OnListening = Callable[[str, SandboxService], Awaitable[None]]
"""Told the url and the service as soon as callers can reach it; runs beside the server."""


async def serve(settings: Settings, *, on_listening: OnListening) -> None:
    """Serve until SIGINT or SIGTERM. Raises RuntimeUnavailable where that cannot begin."""
    with _bound(settings.host, settings.port) as listener:
        async with open_service(settings) as service:
            config = uvicorn.Config(
                make_app(service, settings),
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=round(settings.drain_timeout),
            )
            url = _url(listener)
            server = _Server(config, lambda: on_listening(url, service))
            await server.serve([listener])


def make_app(sandboxes: Sandboxes, settings: Settings) -> FastAPI:
    """What a server answers: the API, and the tools over MCP where that is installed."""
    keys = ApiKeys.parse(settings.api_keys.get_secret_value())
    limits = ApiLimits(upload_bytes=settings.max_upload)
    try:
        from sandbox_sdk.integrations.mcp import McpEndpoint
    except ModuleNotFoundError as exc:
        log.info("mcp.not_served", why=f"pip install 'agent-sandbox[mcp]' ({exc})")
        return create_app(sandboxes, keys=keys, limits=limits)
    mcp = McpEndpoint(sandboxes, tenant=keys.tenant, loopback_only=settings.trusts_loopback())
    app = create_app(sandboxes, keys=keys, limits=limits, lifespan=mcp.lifespan)
    app.router.routes.append(Route("/mcp", mcp))
    return app


class _Server(uvicorn.Server):
    """Tells when it listens, and leaves signals to the loop."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its own shutdown, before ours."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def main_loop(self) -> None:
        telling = asyncio.ensure_future(self._on_listening())
        try:
            await super().main_loop()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


def _bound(host: str, port: int) -> socket.socket:
    """A socket with its address, which refuses callers until the server listens on it.

    Raises RuntimeUnavailable.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Named as TCP: asyncio turns off Nagle's algorithm only for sockets that say so.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as exc:
        raise RuntimeUnavailable(f"cannot listen on {host}: {exc.strerror}") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as exc:
        listener.close()
        raise RuntimeUnavailable(
            f"cannot listen on {host}, port {port}: {exc.strerror}; choose another with --port"
        ) from exc
    return listener


def _url(listener: socket.socket) -> str:
    """Where callers on this machine reach a socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
