"""Names to addresses, in threads of their own: no box can use up those of the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from sandbox_server.network import addresses
from sandbox_server.network.addresses import IPAddress

_THREADS = 16


class Resolver(Protocol):
    async def resolve(self, name: str) -> Sequence[IPAddress]:
        """All addresses of a name, the preferred first. Raises OSError if there are none."""

    def close(self) -> None: ...


class SystemResolver:
    """As the server's machine resolves names. Close it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "resolve")

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> list[IPAddress]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    texts = dict.fromkeys(str(each[4][0]) for each in found)
    return [address for text in texts if (address := addresses.parse(text)) is not None]
