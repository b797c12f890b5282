"""The local service of one process, shared by all of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import AsyncIterator
from typing import Any

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.background import background
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.local.host import local_settings, open_local, socket_path
from sandbox_server.private import short_path
from sandbox_server.sessions.lease import AlreadyRunning
from sandbox_server.settings import Settings
from sandbox_server.unused import unknown

log = logging.getLogger("sandbox")
# Silent unless configured: that a guest waits for the next host is nothing to warn of.
log.addHandler(logging.NullHandler())

_LOOK_S = 0.2
"""How often a guest tries to become the host."""


class SharedService:
    """The local service as this process sees it, as its host or as a guest of another process.

    Runs in the background loop, in a single task.
    """

    def __init__(self, settings: Settings) -> None:
        self.users = 0
        self._settings = settings
        self._found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sandboxes: Sandboxes | None = None
        self._closing = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    def __repr__(self) -> str:
        return f"{self._settings.name()}: {self._sandboxes or 'starting'}"

    async def place(self) -> Sandboxes:
        """Where to send calls now. Raises the error that kept the service from starting."""
        await asyncio.shield(self._found)
        assert self._sandboxes is not None
        return self._sandboxes

    async def close(self) -> None:
        _open.pop((os.getpid(), self._settings.name()), None)
        background().forget(self)
        self._closing.set()
        if not self._found.done():
            self._found.cancel()
            self._life.cancel()
        await asyncio.wait([self._life])

    async def _live(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                guest: Sandboxes | None = None
                while not self._closing.is_set():
                    if await self._host():
                        return
                    if guest is None:
                        guest = await stack.enter_async_context(_guest(self._settings))
                    if not self._found.done() and await _answers(guest):
                        self._settle(guest)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await self._closing.wait()
        except Exception as exc:
            self._fail(exc)

    async def _host(self) -> bool:
        """Be the host until closed; False if another process is. Open calls to the previous host
        are retried and arrive here, since the socket path is the same."""
        try:
            async with open_local(self._settings) as service:
                self._settle(service)
                await self._closing.wait()
                return True
        except AlreadyRunning:
            return False
        except SandboxError as exc:
            if not self._found.done():
                raise
            log.warning("cannot take over the local service: %s", exc.message)
            return False

    def _settle(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        if not self._found.done():
            self._found.set_result(None)

    def _fail(self, exc: Exception) -> None:
        if self._found.done():
            log.error("the local service failed", exc_info=exc)
        else:
            self._found.set_exception(exc)


_open: dict[tuple[int, str], SharedService] = {}
"""By process and name: a forked child must not use those of its parent."""


def local_service(**given: Any) -> SharedService:
    """This process's service with these settings. Raises InvalidRequest."""
    settings = local_settings(**given)
    for setting, why in unknown(os.environ).items():
        warnings.warn(f"{setting}: {why}", stacklevel=2)
    key = (os.getpid(), settings.name())
    if key not in _open:
        shared = _open[key] = SharedService(settings)
        background().at_exit(shared, shared.close, last=True)
    return _open[key]


@contextlib.asynccontextmanager
async def _guest(settings: Settings) -> AsyncIterator[Sandboxes]:
    """A connection to the host, another process."""
    with short_path(socket_path(settings)) as name:
        async with RemoteBackend(f"unix://{name}") as remote:
            yield remote


async def _answers(sandboxes: Sandboxes) -> bool:
    try:
        await sandboxes.health()
    except RuntimeUnavailable:
        return False
    return True
