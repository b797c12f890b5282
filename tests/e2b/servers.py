"""Servers with the e2b door, as users run them, and the SDK's clients for them."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import e2b
from anyio.from_thread import BlockingPortal

from tests.fleet.fleet import GRACE_S, Fleet
from tests.fleet.redis_server import RedisServer, redis_program
from tests.server_process import running

KEY = "key-of-acme"
OTHER_KEY = "key-of-globex"
KEYS = f"acme:{KEY},globex:{OTHER_KEY}"
_SETTINGS = {"SANDBOX_API_KEYS": KEYS, "SANDBOX_MAX_UPLOAD": "8m", "SANDBOX_POOL_SIZE": "1"}


@dataclass(frozen=True)
class Way:
    """How the SDK reaches boxes of a runtime."""

    runtime: str
    name: str

    def __str__(self) -> str:
        return f"{self.name}-{self.runtime}"


def ways(runtimes: list[str]) -> list[Way]:
    """Every way on the fastest runtime, and one on the others; gVisor is docker to a server."""
    servers = [name for name in ("bubblewrap", "docker") if name in runtimes]
    found = [Way(runtime, "standalone") for runtime in servers]
    if servers:
        found.append(Way(servers[0], "processes"))
    if servers and redis_program():
        found.append(Way(servers[0], "fleet"))
    return found


@dataclass(frozen=True)
class Served:
    """Where a server is; a fleet has several addresses."""

    urls: list[str]

    def options(self, *, key: str = KEY, at: int = 0) -> dict[str, Any]:
        """Of every call of the SDK, in place of environment variables."""
        door = f"{self.urls[at % len(self.urls)]}/e2b"
        return {"api_url": door, "sandbox_url": door, "api_key": key, "validate_api_key": False}


@asynccontextmanager
async def serving(way: Way, folder: Path, **settings: str) -> AsyncIterator[Served]:
    """settings: besides the usual ones."""
    settings = {**_SETTINGS, **settings}
    if way.name == "fleet":
        async with _fleet(way.runtime, folder, settings) as found:
            yield found
        return
    more = {"SANDBOX_PROCESSES": "2"} if way.name == "processes" else {}
    async with running(way.runtime, folder, **settings, **more) as server:
        await server.healthy()
        yield Served([server.url])


@asynccontextmanager
async def _fleet(runtime: str, folder: Path, settings: dict[str, str]) -> AsyncIterator[Served]:
    redis = RedisServer(folder / "redis")
    await redis.start()
    fleet = Fleet(runtime, folder, redis, grace_s=GRACE_S)
    try:
        coordinators = [fleet.process("coordinator", **settings) for _ in range(2)]
        await fleet.run([fleet.process("worker", **settings)], coordinators)
        yield Served([each.url for each in coordinators])
    finally:
        await fleet.close()
        await redis.stop()


class Blocking:
    """An object of the asynchronous SDK whose methods are called as those of the other one."""

    def __init__(self, inner: Any, portal: BlockingPortal) -> None:
        self.inner = inner
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if inspect.isclass(found) or not callable(found):
            return self._wrapped(found)
        return self._called(found)

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrapped(self._portal.call(lambda: method(*args, **kwargs)))

        return call

    def _wrapped(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._wrapped(each) for each in found]
        works = any(
            callable(v) and inspect.iscoroutinefunction(v) for v in vars(type(found)).values()
        )
        is_theirs = type(found).__module__.startswith("e2b") and works
        return Blocking(found, self._portal) if is_theirs else found


def sandbox_class(kind: str, portal: BlockingPortal) -> Any:
    """`Sandbox` of the SDK, or `AsyncSandbox` behind the same methods."""
    return e2b.Sandbox if kind == "sync" else Blocking(e2b.AsyncSandbox, portal)


def as_iterable(box: Any, pieces: list[Any]) -> Any:
    """The pieces as the SDK of a sandbox takes what comes bit by bit."""
    if not isinstance(box, Blocking):
        return iter(pieces)

    async def one_by_one() -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return one_by_one()
