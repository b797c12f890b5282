"""A server that is not there, not there any more, or does not take calls."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from sandbox_sdk import AsyncSandboxClient, RemoteBackend, RuntimeUnavailable, SandboxClient
from sandbox_sdk.testing import FakeBackend
from tests.contract.stand import served
from tests.tenants import Fakes

PATIENCE_S = 30.0


@contextlib.contextmanager
def deaf() -> Iterator[str]:
    """The url of a machine that drops what it is sent, as one that is off does."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # Linux answers until its queue is full.
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_nothing_listens_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with (
            pytest.raises(RuntimeUnavailable, match=f"{url}.*SANDBOX_URL"),
            SandboxClient(server_url=url) as sandbox,
        ):
            sandbox.execute("true")


async def test_connecting_has_its_own_timeout() -> None:
    """Not that of the command, and not forever."""
    with deaf() as url:
        backend = RemoteBackend(url, connect_timeout_s=0.3, retry_for_s=0)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(RuntimeUnavailable, match=url):
                async with AsyncSandboxClient("t", backend=backend) as sandbox:
                    await sandbox.execute("true", timeout=3600)
        async with asyncio.timeout(5), AsyncSandboxClient("t", server_url=url) as sandbox:
            with pytest.raises(RuntimeUnavailable, match="no connection within 4 s"):
                await sandbox.execute("true")


async def test_a_server_that_goes_away() -> None:
    fake = FakeBackend()
    fake.on("true")

    async def use(running: contextlib.AsyncExitStack, backend: RemoteBackend) -> None:
        async with AsyncSandboxClient(backend=backend) as sandbox:
            await sandbox.execute("true")
            await running.aclose()
            await sandbox.execute("true")

    async with contextlib.AsyncExitStack() as running, asyncio.timeout(PATIENCE_S):
        url = await running.enter_async_context(served(Fakes(fake)))
        with pytest.raises(RuntimeUnavailable, match=url):
            await use(running, RemoteBackend(url, retry_for_s=0.5))
