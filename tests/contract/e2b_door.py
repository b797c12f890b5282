"""Boxes at E2B, where E2B is a server of ours: bubblewrap boxes behind its door at /e2b."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from sandbox_server.runtime.e2b import E2bAccount, E2bRuntime

KEY = "key-of-the-operator"
_SETTINGS = {
    "SANDBOX_API_KEYS": f"operator:{KEY}",
    "SANDBOX_MAX_SESSIONS": "60",
    "SANDBOX_POOL_SIZE": "2",
    "SANDBOX_MAX_POOL_SIZE": "4",
    "SANDBOX_MAX_UPLOAD": "256m",
    "SANDBOX_OUTPUT_LIMIT": "8m",
    "SANDBOX_POLICY": "open",
}


class E2bDoor:
    """Where the server is; empty until it is started."""

    url = ""

    @classmethod
    def runtime(cls, *, key: str = KEY) -> E2bRuntime:
        assert cls.url, "the door of the tests is not open: see the fixture e2b_door"
        door = f"{cls.url}/e2b"
        return E2bRuntime(E2bAccount(api_key=key, api_url=door, sandbox_url=door))


@contextlib.contextmanager
def open_door(folder: Path) -> Iterator[None]:
    from tests.server_process import running

    folder.mkdir(mode=0o711)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running("bubblewrap", folder, **_SETTINGS)) as server,
    ):
        portal.call(server.healthy)
        E2bDoor.url = server.url
        yield
        E2bDoor.url = ""
