"""An app on a real socket."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from starlette.types import ASGIApp

from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.limits import ApiLimits
from sandbox_server.api.server import server_config
from tests.api.fake import FakeTenants


@dataclass
class Served:
    fake: FakeTenants
    http: httpx.Client
    port: int

    def connect(self) -> socket.socket:
        """A connection for requests that no well-behaved client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


def eventually(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    """What a server does behind its answer is not done when the answer is here."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@contextmanager
def served(
    *,
    keys: ApiKeys | None = None,
    limits: ApiLimits | None = None,
    certificate: tuple[Path, Path] | None = None,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[Served]:
    """certificate: the files of its key and of itself, for TLS. around: sees what the app gets."""
    fake = FakeTenants()
    app = create_app(fake, keys=keys, limits=limits or ApiLimits())
    # Named as TCP: asyncio turns off Nagle's algorithm only for sockets that say so.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = server_config(app, limits or ApiLimits(), drain_timeout_s=1)
    if certificate is not None:
        config.ssl_keyfile, config.ssl_certfile = certificate
    config.app = around(app)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    port = listener.getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
            yield Served(fake, http, port)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def whole_answer(client: socket.socket) -> bytes:
    """Everything up to the server's closing of the connection."""
    answer = b""
    while piece := client.recv(65536):
        answer += piece
    return answer
