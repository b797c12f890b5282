"""A warden that takes nothing more, over a real pair of sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from sandbox_server.runtime.streams import SocketStream
from sandbox_server.runtime.warden import link as link_module
from sandbox_server.runtime.warden.link import Link, LinkLost
from sandbox_warden import frames


@pytest.fixture
async def stalled(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Link]:
    monkeypatch.setattr(link_module, "STALL_S", 0.2)
    ours, theirs = socket.socketpair()
    with theirs:
        link = Link(SocketStream(*await asyncio.open_unix_connection(sock=ours)))
        yield link
        await link.close()


async def upload(link: Link) -> None:
    async with link.request(frames.PUT, {}) as channel:
        while True:
            await channel.send(frames.DATA, bytes(frames.CHUNK))


async def test_who_writes_is_told(stalled: Link) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(LinkLost, match="took no data"):
            await upload(stalled)


async def test_who_leaves_may_leave(stalled: Link) -> None:
    task = asyncio.create_task(upload(stalled))
    await asyncio.sleep(0.1)
    task.cancel()
    async with asyncio.timeout(10):
        with contextlib.suppress(LinkLost, asyncio.CancelledError):
            await task
