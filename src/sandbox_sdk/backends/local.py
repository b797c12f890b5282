"""LocalBackend: sandboxes made by this process, without a server and without a port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypedDict, Unpack

from sandbox_sdk.backends.crossing import Crossing
from sandbox_sdk.background import background
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.sandboxes import Sandboxes

if TYPE_CHECKING:
    from sandbox_server.settings import Settings

log = logging.getLogger("sandbox")

_LOOK_S = 0.2
"""How often a process that is not the host looks whether there still is one."""


class LocalSettings(TypedDict, total=False):
    """What a local service can be told; the rest comes from SANDBOX_… in the environment."""

    runtime: Literal["auto", "docker", "bubblewrap"]
    docker_runtime: str
    state_dir: str | Path
    image: str
    environments: dict[str, str]
    pool_size: int
    min_pool_size: int
    max_pool_size: int
    max_sessions: int
    idle_timeout: float
    command_timeout: float
    memory_limit: int | str
    cpu_limit: float
    pids_limit: int
    disk_limit: int | str
    network: Literal["none", "bridge"]
    output_limit: int | str
    max_upload: int | str


class LocalBackend(Crossing):
    """The sandboxes of this machine's user.

    The service starts with the first client that uses it and stops with the last. All clients of a
    process share it, whatever loop or thread they are in, and so do other processes of the same
    user: one of them runs it, and when that one ends, another takes over. The sandbox of a thread
    outlives the process, until its idle timeout: a program that is run again finds its files.

    Raises RuntimeUnavailable where no box can be made here, or the server part is not installed.
    """

    def __init__(self, **settings: Unpack[LocalSettings]) -> None:
        self._background = background()
        self._settings = settings
        self._shared: _Shared | None = None
        self._users = 0

    def __repr__(self) -> str:
        return f"<LocalBackend {self._shared or 'not open'}>"

    async def __aenter__(self) -> Self:
        await self._background.cross(self._enter)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._background.cross(self._leave)

    async def _enter(self) -> None:
        self._users += 1
        try:
            if self._shared is None:
                self._shared = _shared(self._settings)
                self._shared.users += 1
            await self._shared.place()
        except BaseException:
            await self._leave()
            raise

    async def _leave(self) -> None:
        self._users = max(self._users - 1, 0)
        if self._users == 0 and self._shared is not None:
            shared, self._shared = self._shared, None
            shared.users -= 1
            if shared.users == 0:
                await shared.close()

    async def _place(self) -> Sandboxes:
        if self._shared is None:
            raise RuntimeError("this backend is not open: use it with a client, or `async with`")
        return await self._shared.place()


class _Shared:
    """The local service as this process has it: run here, or by a process that was there before.

    Lives in the background loop, in one task from its start to its end.
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
        """Where calls go now. Raises what kept the service from starting."""
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
        """Run the service until this is closed; False where another process does. Calls that are
        under way there come here by themselves, because this one is found at the same place."""
        from sandbox_server.local import open_local
        from sandbox_server.sessions.lease import AlreadyRunning

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
            log.warning("the local service cannot be taken over: %s", exc.message)
            return False

    def _settle(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes
        if not self._found.done():
            self._found.set_result(None)

    def _fail(self, exc: Exception) -> None:
        if self._found.done():
            log.error("the local service broke", exc_info=exc)
        else:
            self._found.set_exception(exc)


_open: dict[tuple[int, str], _Shared] = {}
"""By process, because a child does not have those of its parent, and by name."""


def _shared(given: LocalSettings) -> _Shared:
    """The one of this process with such settings. Raises RuntimeUnavailable, InvalidRequest."""
    try:
        from sandbox_server.local import local_settings
    except ImportError as exc:
        raise RuntimeUnavailable(
            f"local sandboxes need `pip install agent-sandbox[server]` ({exc}); or set SANDBOX_URL"
            " to use a server"
        ) from exc
    settings = local_settings(**given)
    key = (os.getpid(), settings.name())
    if key not in _open:
        shared = _open[key] = _Shared(settings)
        background().at_exit(shared, shared.close, last=True)
    return _open[key]


@contextlib.asynccontextmanager
async def _guest(settings: Settings) -> AsyncIterator[Sandboxes]:
    """The service of another process. Its path may be longer than the kernel takes, so it goes by
    the descriptor of its folder."""
    from sandbox_sdk.backends.remote import RemoteBackend
    from sandbox_server.local import socket_path

    path = socket_path(settings)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        async with RemoteBackend(f"unix:///proc/self/fd/{folder}/{path.name}") as remote:
            yield remote
    finally:
        os.close(folder)


async def _answers(sandboxes: Sandboxes) -> bool:
    try:
        await sandboxes.health()
    except RuntimeUnavailable:
        return False
    return True
