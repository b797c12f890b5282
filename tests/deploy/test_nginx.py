"""nginx of deploy/nginx-bare-metal.conf before a server: the API, and previews."""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect

from sandbox_sdk.backends.remote import RemoteBackend
from tests.contract.conftest import RUNTIMES, state_dir
from tests.contract.preview_app import exposed, serving
from tests.deploy.proxies import adapted
from tests.deploy.stack import NGINX, build_stand_ins
from tests.internet import HERE
from tests.ports import free_port
from tests.run import run_owner
from tests.server_process import running

__all__ = ["state_dir"]

pytestmark = [
    pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here"),
    pytest.mark.skipif(
        not shutil.which("nginx") and "docker" not in RUNTIMES, reason="no nginx and no engine"
    ),
    pytest.mark.timeout(600),  # The first time, an image is built.
]


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """That of this machine, or in a container."""
    words = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    name = run_owner(f"nginx-{os.getpid()}")
    if not shutil.which("nginx"):
        build_stand_ins("nginx")
        words = ["docker", "run", "--rm", "--name", name, "--network", "host",
                 "-v", f"{folder}:{folder}", NGINX, *words]  # fmt: skip
    with (folder / "nginx.log").open("wb") as log:
        started = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        yield started
    finally:
        if words[0] == "docker":
            subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
        started.terminate()
        started.wait()


async def listening(port: int, started: subprocess.Popen[bytes], folder: Path) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HERE, port)
                writer.close()
                return
            assert started.poll() is None, (folder / "nginx.log").read_text()
            await asyncio.sleep(0.1)


class Resolved(httpx.AsyncHTTPTransport):
    """Every name is here."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["sni_hostname"] = request.url.host
        request.url = request.url.copy_with(host=HERE)
        return await super().handle_async_request(request)


async def test_the_example_carries_the_api_and_previews(state_dir: Path, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "SANDBOX_PREVIEW_URL": f"https://previews.example.com:{port}",
        "SANDBOX_API_KEYS": "default:a-key",
    }
    async with (
        running("bubblewrap", state_dir, **settings) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        adapted(tmp_path, port, server.port, server.port + 1)
        await server.ready()
        trusting = ssl.create_default_context(cafile=tmp_path / "fullchain.pem")
        started = stack.enter_context(nginx(tmp_path))
        await listening(port, started, tmp_path)
        async with (
            RemoteBackend(server.url, api_key="a-key") as sandboxes,
            httpx.AsyncClient(transport=Resolved(verify=trusting), timeout=60) as http,
        ):
            api = await http.get(f"https://sandbox.example.com:{port}/health")
            assert api.status_code == 200, (tmp_path / "nginx.log").read_text()
            await serving(sandboxes)
            preview = await exposed(sandboxes)
            place = urlsplit(preview.url)
            assert place.netloc.endswith(f".previews.example.com:{port}")
            entered = await http.get(preview.url, headers={"accept": "text/html"})
            assert entered.status_code == 302
            assert "Secure" in entered.headers["set-cookie"]
            cookie = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
            origin = f"https://{place.netloc}"
            seen = dict((await http.get(f"{origin}/x", headers=cookie)).json()["headers"])
            assert seen["host"] == place.netloc
            assert seen["x-forwarded-proto"] == "https"
            assert seen["x-forwarded-for"] == f"{HERE}, {HERE}"
            async with http.stream("GET", f"{origin}/events?1000", headers=cookie) as events:
                lines = events.aiter_lines()
                assert await anext(lines) == "data: 0"  # Long before the end: nothing is held back.
            body = bytes(3_000_000)
            posted = await http.post(f"{origin}/sum", content=body, headers=cookie)
            assert posted.json()["size"] == len(body)
            await websocket(place.netloc, cookie, trusting)


async def websocket(netloc: str, headers: dict[str, str], trusting: ssl.SSLContext) -> None:
    host, _, port = netloc.partition(":")
    dialled: Any = {"host": HERE, "port": int(port), "proxy": None, "ssl": trusting}
    async with connect(
        f"wss://{netloc}/ws",
        **dialled,
        server_hostname=host,
        additional_headers={**headers, "origin": f"https://{netloc}"},
        compression=None,
    ) as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"
