"""A preview server with a port of this machine in the place of a box."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import NotListening, RuntimeUnavailable, SessionNotFound
from sandbox_sdk.protocol.models import ConnectRequest
from sandbox_server.api.server import bound
from sandbox_server.previews.limits import PreviewLimits
from sandbox_server.previews.server import PreviewServer
from sandbox_server.sessions.preview_address import PreviewAddress
from sandbox_server.sessions.previews import SessionPreviews, StoredPreview, digest
from tests.contract.preview_app import APP
from tests.ports import free_port

SESSION = "0a1b2c3d-0000-4000-8000-00000000abcd"
TOKEN = "preview_" + "Zk3vW0m2Qd-" * 3 + "YJ0l6cQb_n"
MEGABYTE = bytes(1 << 20)


class _Socket(ByteChannel):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(1 << 16)
        except OSError as exc:
            raise RuntimeUnavailable(str(exc)) from exc

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as exc:
            raise RuntimeUnavailable(str(exc)) from exc

    async def end(self) -> None:
        self._writer.write_eof()


class ThisMachine:
    """In the place of a Sandboxes: every port of the box is one of this machine."""

    def __init__(self, app_port: int) -> None:
        self.app_port = app_port
        self.opened = 0
        self.lost = False

    @contextlib.asynccontextmanager
    async def connect(self, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        if self.lost:
            raise SessionNotFound("gone")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.app_port)
        except OSError:
            raise NotListening("nobody") from None
        self.opened += 1
        try:
            yield _Socket(reader, writer)
        finally:
            writer.transport.abort()


class Place:
    """A preview server, and what it knows."""

    def __init__(self, app_port: int) -> None:
        self.box = ThisMachine(app_port)
        ports = {
            8080: StoredPreview(public=False, created_at=0, digests=(digest(TOKEN),)),
            9090: StoredPreview(public=True, created_at=0),
        }
        self.previews = SessionPreviews(tenant="default", session_id=SESSION, ports=ports)
        self.silent = False
        self.unsettled = False
        """Whether sessions may be missing, as after a Redis was emptied."""
        self.port = 0

    async def previews_of(self, session_id: str) -> SessionPreviews | None:
        if self.silent:
            raise RuntimeUnavailable("no answer")
        if session_id != SESSION and self.unsettled:
            raise RuntimeUnavailable("sessions are still being registered")
        return self.previews if session_id == SESSION else None

    @contextlib.asynccontextmanager
    async def open(
        self, url: str = "", *, behind_proxy: bool = False, **limits: Any
    ) -> AsyncIterator["Place"]:
        listener = bound("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        address = PreviewAddress.parse(url or f"http://localhost:{self.port}")
        async with PreviewServer(
            lambda _: self.box,  # type: ignore[arg-type, return-value]
            self.previews_of,
            address,
            listener,
            limits=PreviewLimits(**limits),
            behind_proxy=behind_proxy,
        ):
            yield self

    def visitor(
        self, port: int = 9090, *, at: str = "127.0.0.1", **headers: str
    ) -> httpx.AsyncClient:
        """at: the address it comes from."""
        host = f"{port}-{SESSION}.localhost:{self.port}"
        given = {"host": host, "accept": "text/html", **headers}
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers=given,
            timeout=30,
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(local_address=at),
        )

    async def raw(
        self,
        *pieces: bytes,
        host: str | None = None,
        wait_s: float = 5.0,
        closes: bool = False,
    ) -> bytes:
        """What comes back for these bytes, until the server closes or falls silent. `HOST` stands
        for the name of the public preview. closes: it has to close. Raises TimeoutError."""
        host = host or f"9090-{SESSION}.localhost:{self.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = b""
        try:
            for piece in pieces:
                writer.write(piece.replace(b"HOST", host.encode()))
                await writer.drain()
            async with asyncio.timeout(60.0 if closes else wait_s):
                while data := await reader.read(1 << 16):
                    found += data
        except TimeoutError:
            if closes:
                raise
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        return found


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of the application, and its log."""
    folder, port = tmp_path_factory.mktemp("app"), free_port()
    (folder / "app.py").write_text(APP)
    log = folder / "app.log"
    with log.open("wb") as out:
        program = subprocess.Popen(
            [sys.executable, folder / "app.py", str(port)], stdout=out, stderr=out
        )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), contextlib.closing(_dial(port)):
            break
        time.sleep(0.05)
    try:
        yield port, log
    finally:
        program.kill()
        program.wait()


def _dial(port: int) -> Any:
    import socket

    return socket.create_connection(("127.0.0.1", port))


@pytest.fixture
async def place(app: tuple[int, Path]) -> AsyncIterator[Place]:
    async with Place(app[0]).open() as opened:
        yield opened
