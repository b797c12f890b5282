"""The background loop: the one event loop of ours in a process, in a thread of its own.

Synchronous callers have no event loop, and the local service must not live in one that a caller may
end at any time: both use this one. It starts at its first use and ends with the process, after
everything that is still open has been closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
)
from concurrent.futures import Future, wait
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

GIVE_UP_S = 5.0
"""How long to wait for cancelled work to stop."""

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class Background:
    """An event loop in a thread. Its methods may be called from any number of threads."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._ended = False
        self._open: dict[object, Callable[[], Awaitable[None]]] = {}
        self._open_last: dict[object, Callable[[], Awaitable[None]]] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        state = "not started" if self._portal is None else "running"
        return f"<Background {state}, {len(self._open) + len(self._open_last)} open>"

    def run(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do work in the loop and wait for it. An interrupt of the waiting thread cancels it."""
        future, ended = self._start(work)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                wait([ended], timeout=GIVE_UP_S)
            raise

    def iterate(self, make: Callable[[], AsyncGenerator[_Item]]) -> Generator[_Item]:
        """What an asynchronous generator of the loop yields. Closing this one closes that one."""
        items = make()
        try:
            while True:
                try:
                    yield self.run(items.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            if not self._ended:
                self.run(items.aclose)

    async def cross(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do work in the loop, for a task of any loop. If the task is cancelled, the work is too,
        and is waited for."""
        if asyncio.get_running_loop() is self._loop:
            return await work()
        future, ended = self._start(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([asyncio.wrap_future(ended)], timeout=GIVE_UP_S)
            raise

    async def cross_each(self, make: Callable[[], AsyncGenerator[_Item]]) -> AsyncGenerator[_Item]:
        """What an asynchronous generator of the loop yields, for a task of any loop."""
        items = make()
        try:
            while True:
                try:
                    item = await self.cross(items.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            await self.cross(items.aclose)

    def _start(
        self, work: Callable[[], Awaitable[_Result]]
    ) -> tuple[Future[_Result], Future[None]]:
        """The future of the result, and one of the end. Cancelled work has no result but still an
        end, and a generator must not be closed before that."""
        ended: Future[None] = Future()

        async def whole() -> _Result:
            try:
                return await work()
            finally:
                ended.set_result(None)

        return self._started().start_task_soon(whole), ended

    def at_exit(
        self, owner: object, close: Callable[[], Awaitable[None]], *, last: bool = False
    ) -> None:
        """Close owner at the end of the process, unless forget() is called before. last: after all
        others, because they need it to close."""
        (self._open_last if last else self._open)[owner] = close

    def close_when_unheld(self, holder: object, owner: object) -> None:
        """Close owner when holder is garbage collected, not only at the end of the process."""
        weakref.finalize(holder, self._close_soon, owner).atexit = False

    def _close_soon(self, owner: object) -> None:
        """The garbage collector calls this, in any thread at any moment: it must not block."""
        close = self._open.pop(owner, None)
        if close is not None and self._loop is not None and os.getpid() == self._pid:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._close, close)

    def _close(self, close: Callable[[], Awaitable[None]]) -> None:
        async def closed() -> None:
            with contextlib.suppress(Exception):
                await close()

        task = asyncio.ensure_future(closed())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def forget(self, owner: object) -> None:
        self._open.pop(owner, None)
        self._open_last.pop(owner, None)

    def _started(self) -> BlockingPortal:
        if os.getpid() != self._pid:
            raise RuntimeError("this client was made before a fork; make a new one in the child")
        if self._ended:
            raise RuntimeError("the process is ending and its clients are closed; call earlier")
        if self._portal is not None:
            return self._portal
        with self._starting:
            if self._portal is None:
                # Not atexit: it runs after the interpreter has shut down thread pools, which
                # closing boxes needs. Importing the pools registers their shutdown, and the last
                # to be registered runs first.
                importlib.import_module("concurrent.futures.thread")
                threading._register_atexit(self._end)  # type: ignore[attr-defined]
                portal = self._stack.enter_context(start_blocking_portal(name="sandbox"))
                self._loop = portal.call(asyncio.get_running_loop)
                self._portal = portal
            return self._portal

    def _end(self) -> None:
        for group in (self._open, self._open_last):
            while group:
                _, close = group.popitem()
                with contextlib.suppress(Exception):
                    self.run(close)
            self._wait_for_closing()
        self._ended = True
        self._stack.close()

    def _wait_for_closing(self) -> None:
        async def all_closed() -> None:
            while self._closing:
                await asyncio.wait(self._closing)

        if self._portal is not None:
            with contextlib.suppress(Exception):
                self.run(all_closed)


async def coming_from(
    loop: asyncio.AbstractEventLoop, chunks: AsyncIterable[_Item]
) -> AsyncIterator[_Item]:
    """What an iterator of one loop yields, for a task of any other."""
    items = aiter(chunks)

    async def step() -> _Item | None:
        return await anext(items, None)

    while True:
        item = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step(), loop))
        if item is None:
            return
        yield item


_background = Background()


def background() -> Background:
    """The background loop of this process."""
    return _background


def _forget_after_fork() -> None:
    """A forked child does not have the thread of its parent's loop: it gets a loop of its own."""
    global _background
    _background = Background()


os.register_at_fork(after_in_child=_forget_after_fork)
