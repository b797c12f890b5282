"""One watch of an owner's pods or claims, for everybody who waits for one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, Unreachable
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.failures import ApiError, Pod

log = structlog.get_logger(__name__)


class Watch:
    """Knows the latest state of the objects with a label. Whoever starts it stops it."""

    def __init__(self, api: Api, selector: str, *, kind: str = "pods", group: str = "") -> None:
        self._api = api
        self._selector = selector
        self._kind = kind
        self._path = api.path(kind, group=group)
        self._found: dict[str, Pod] = {}
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._listed = asyncio.Event()
        self._broken: SandboxError | None = None

    def __repr__(self) -> str:
        found, awaited = len(self._found), len(self._waiting)
        return f"<Watch {self._selector} {found} {self._kind}, {awaited} awaited>"

    async def states(self, name: str) -> AsyncGenerator[Pod | None]:
        """The states of one, the present one first: None while there is none of that name. Raises
        SandboxError while they cannot be watched."""
        changed = asyncio.Event()
        self._waiting.setdefault(name, []).append(changed)
        try:
            self._start()
            await self._listed.wait()
            while True:
                if self._broken is not None:
                    raise self._broken
                changed.clear()
                yield self._found.get(name)
                await changed.wait()
        finally:
            self._waiting[name].remove(changed)
            if not self._waiting[name]:
                del self._waiting[name]

    def latest(self, name: str) -> Pod | None:
        """What is known of one, without waiting. Follows them from then on."""
        self._start()
        return self._found.get(name)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow(), name=repr(self))

    async def _follow(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                version = await self._list()
                await self._take(version)
            except (ApiError, Unreachable) as exc:  # Too old, or cut off: list again.
                log.info("pods.watch_ended", selector=self._selector, why=str(exc))
            except SandboxError as exc:
                log.warning("pods.watch_broken", selector=self._selector, why=exc.message)
                self._break(exc)
                await asyncio.sleep(backoff.pause_s(0.0) or 2.0)

    def _break(self, error: SandboxError) -> None:
        self._broken = error
        self._listed.set()
        for name in list(self._waiting):
            self._tell(name)

    async def _list(self) -> str:
        try:
            found = await self._api.get(
                self._path, f"list {self._kind}", labelSelector=self._selector
            )
        except Unreachable as exc:  # Tried for long enough.
            raise RuntimeUnavailable(exc.message) from exc
        pods = {pod["metadata"]["name"]: pod for pod in found["items"]}
        gone = self._found.keys() - pods.keys()
        self._found, self._broken = pods, None
        self._listed.set()
        for name in {*pods, *gone}:
            self._tell(name)
        return str(found["metadata"]["resourceVersion"])

    async def _take(self, version: str) -> None:
        while True:
            events = self._api.watch(
                self._path,
                f"watch {self._kind}",
                labelSelector=self._selector,
                resourceVersion=version,
                allowWatchBookmarks="true",
            )
            async with contextlib.aclosing(events) as changes:
                async for event in changes:
                    about = event["object"]["metadata"]
                    version = str(about["resourceVersion"])
                    if event["type"] == "DELETED":
                        self._found.pop(about["name"], None)
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        self._found[about["name"]] = event["object"]
                    self._tell(about.get("name", ""))

    def _tell(self, name: str) -> None:
        for changed in self._waiting.get(name, ()):
            changed.set()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
