"""Background tasks with an owner that stops them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class TaskSet(Generic[_T]):
    """Background tasks, at most `limit` at a time. Whoever creates the set stops it."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = asyncio.Semaphore(limit) if limit else contextlib.nullcontext()
        self._tasks: set[asyncio.Task[_T]] = set()

    def __len__(self) -> int:
        """Tasks that are not done; a task is removed before its `then` is called."""
        return len(self._tasks)

    def start(
        self,
        work: Callable[[], Coroutine[Any, Any, _T]],
        *,
        then: Callable[[asyncio.Task[_T]], None] = lambda _: None,
    ) -> None:
        # In an empty context, without the log fields of the request that started the task.
        context = Context()
        task = asyncio.create_task(self._run(work), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(then, context=context)

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do what goes on if its caller is cancelled, and what `stop` waits for then."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def stop(self, *, after_s: float = 0) -> None:
        """Cancel tasks that are not done within after_s, and wait for their end."""
        if self._tasks and after_s:
            await asyncio.wait(self._tasks, timeout=after_s)
        await stop(*self._tasks)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._slots:
            return await work()


def until_next(period_s: float) -> float:
    """How long to sleep for something that is done again and again. What has the same period is
    done at the same time, so that an idle server wakes up once for all of it."""
    return period_s - asyncio.get_running_loop().time() % period_s


async def stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def uninterrupted(work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread. If cancelled, wait for its end first: a thread cannot be
    stopped."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):  # Some callers cancel repeatedly.
                await asyncio.wait([task])
        raise
