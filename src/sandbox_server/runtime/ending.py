"""The end of boxes. What has them may refuse it for a while: an engine that restarts, an API server
that is away, a right that is missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.tasks import TaskSet

_FIRST_S, _LONGEST_S, _MOST = 0.5, 30.0, 9
"""About two minutes in total, enough for an engine to restart."""
_CLOSE_S = 15.0

log = structlog.get_logger(__name__)

End = Callable[[], Awaitable[None]]


async def end_patiently(box: str, end: End) -> None:
    """Repeat what fails. A box that is still left ends by its dead-man's switch."""
    pauses = Backoff(_FIRST_S, _LONGEST_S, most=_MOST)
    while True:
        try:
            await end()
            return
        except SandboxError as exc:
            pause_s = pauses.pause_s(time.monotonic())
            log.warning("box.not_destroyed", box=box, error=str(exc), again_in_s=pause_s)
        if pause_s is None:
            return
        await asyncio.sleep(pause_s)


class Endings:
    """Ends boxes for callers who do not wait until it succeeds. Whoever makes it closes it."""

    def __init__(self) -> None:
        self._tasks: TaskSet[None] = TaskSet()

    def __repr__(self) -> str:
        return f"<Endings {len(self._tasks)} tried again>"

    async def end(self, box: str, end: End) -> None:
        """Once. If that fails, it is tried again after this has returned."""
        try:
            await end()
        except SandboxError as exc:
            log.warning("box.not_destroyed", box=box, error=str(exc), again_in_s=0)
            self._tasks.start(partial(end_patiently, box, end))

    async def close(self) -> None:
        await self._tasks.stop(after_s=_CLOSE_S)
