"""The HTTP server: runs an app on a socket; signals and shutdown are handled here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.api.connections import bounded_protocol
from sandbox_server.api.handover import Handover
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.websocket_protocol import WebSocketProtocol
from sandbox_server.private import private_listener
from sandbox_server.tasks import stop as stop_tasks
from sandbox_server.tasks import until_next

_DATE_S = 1.0
"""How often the time in the headers of answers is set."""


async def serve_app(
    app: FastAPI,
    listener: socket.socket,
    *,
    limits: ApiLimits,
    on_listening: Callable[[], Awaitable[None]],
    stop: asyncio.Event,
    drain_timeout_s: float,
    handover: Handover | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; then finish open requests within drain_timeout_s.

    handover: of a process that is one of several.
    """
    if stop.is_set():
        return
    config = server_config(app, limits, drain_timeout_s=drain_timeout_s)
    if handover is not None:
        config.http = cast(type[asyncio.Protocol], handover.protocol(limits))
    server = _Server(config, on_listening, handover)
    stopping = asyncio.create_task(_stop_on(stop, server))
    try:
        await server.serve([listener])
    finally:
        stopping.cancel()


def server_config(app: FastAPI, limits: ApiLimits, *, drain_timeout_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], bounded_protocol(limits)),
        ws=WebSocketProtocol,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=round(drain_timeout_s),
    )


@contextlib.asynccontextmanager
async def serving_privately(
    server: uvicorn.Server, path: Path, *, backlog: int
) -> AsyncIterator[None]:
    """Serve on a unix socket that only this user can connect to, and that goes in the end. Raises
    RuntimeUnavailable."""
    with _listening(path, backlog) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving


@contextlib.contextmanager
def _listening(path: Path, backlog: int) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)
    try:
        listener = private_listener(path, backlog=backlog)
    except OSError as exc:
        raise RuntimeUnavailable(f"cannot listen on {path}: {exc}") from exc
    try:
        with listener:
            yield listener
    finally:
        path.unlink(missing_ok=True)


async def _stop_on(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True


class AppServer(uvicorn.Server):
    """Ends as soon as it is told to; uvicorn's own looks ten times a second whether it was."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._end = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        return self._end.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._end.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next(_DATE_S)):
                    await self._end.wait()


class NestedServer(AppServer):
    """One beside another that callers see, and that has the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Server(AppServer):
    """Calls on_listening, and handles signals in the event loop."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_listening: Callable[[], Awaitable[None]],
        handover: Handover | None,
    ) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self._handover = handover

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its shutdown, and so skip ours."""
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
        if self._handover is not None:
            self._handover.start(self._protocol)
        callback = asyncio.ensure_future(self._on_listening())
        try:
            await super().main_loop()
        finally:
            await stop_tasks(callback)
            if self._handover is not None:
                await self._handover.stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Before waiting for open answers, end those that have no end of their own."""
        for end in self.config.app.state.at_stop:  # type: ignore[union-attr]
            end()
        await super().shutdown(sockets)

    def _protocol(self, *, first: bytes) -> asyncio.Protocol:
        """For a connection that another process has passed on."""
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            first=first,
        )


def resolved(host: str, port: int) -> tuple[int, Any]:
    """The family and address to listen on. Raises RuntimeUnavailable."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as exc:
        why = getattr(exc, "strerror", None) or "not a host name"
        raise RuntimeUnavailable(f"cannot listen on {host}: {why}") from exc
    return family, address


def bound(host: str, port: int, *, shared: bool = False, option: str = "--port") -> socket.socket:
    """A bound socket. It refuses connections until the server listens. shared: there may be more of
    them on the same port. option: by which it can be changed. Raises RuntimeUnavailable."""
    family, address = resolved(host, port)
    try:
        # IPPROTO_TCP explicitly: asyncio sets TCP_NODELAY only on such sockets.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as exc:
        raise RuntimeUnavailable(f"cannot listen on {host}: {exc.strerror}") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as exc:
        listener.close()
        raise RuntimeUnavailable(
            f"cannot listen on {host}, port {port}: {exc.strerror}; choose another with {option}"
        ) from exc
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL of a socket for callers on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
