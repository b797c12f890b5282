"""The background loop: the one event loop of ours in a process, in a thread of its own.

Synchronous callers have no event loop, and the local service must not depend on one that a caller
may end at any time. Both live here. The loop starts when it is first needed and ends with the
process, after everything that is still open has been closed.
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
"""How long work may take to stop that nobody waits for any more."""

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
        """Do work in the loop and wait for it. Who is interrupted meanwhile gives it up."""
        future, ended = self._start(work)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                wait([ended], timeout=GIVE_UP_S)
            raise

    def iterate(self, make: Callable[[], AsyncGenerator[_Item]]) -> Generator[_Item]:
        """What an asynchronous iterator yields; it is closed when this one is."""
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
        """Do work in the loop, for a task of any other loop or of this one. Where that task is
        cancelled, the work is too, and it is waited for."""
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
        """What an iterator of the loop yields, for a task of any other loop or of this one."""
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
        """The result, and the end: work that is given up has no result, but an end all the same,
        and an iterator must not be closed before it."""
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
        """Close owner at the end of the process, unless it is forgotten before; what others need
        for their own closing comes last."""
        (self._open_last if last else self._open)[owner] = close

    def close_when_unheld(self, holder: object, owner: object) -> None:
        """Close owner when nobody has its holder any more: one that was forgotten must not stay
        until the end of the process."""
        unheld = weakref.finalize(holder, self._close_soon, owner)
        unheld.atexit = False

    def _close_soon(self, owner: object) -> None:
        """The garbage collector calls this, in any thread and in the middle of anything: it only
        leaves word."""
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
            raise RuntimeError("this client was made before a fork; make another one in the child")
        if self._ended:
            raise RuntimeError("this process is about to end")
        if self._portal is not None:
            return self._portal
        with self._starting:
            if self._portal is None:
                # Not atexit: that comes after the interpreter has ended all use of thread pools,
                # and closing boxes needs them. The pools' own end is registered by their import,
                # and what was registered last comes first.
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


def coming_from(
    loop: asyncio.AbstractEventLoop, chunks: AsyncIterable[_Item]
) -> AsyncIterator[_Item]:
    """What an iterator of one loop yields, for a task of any other."""

    async def each() -> AsyncIterator[_Item]:
        items = aiter(chunks)
        while True:
            step = asyncio.run_coroutine_threadsafe(_next(items), loop)
            if (item := await asyncio.wrap_future(step)) is None:
                return
            yield item

    return each()


async def _next(items: AsyncIterator[_Item]) -> _Item | None:
    return await anext(items, None)


_background = Background()


def background() -> Background:
    """The one of this process."""
    return _background


def _forget_after_fork() -> None:
    """A child has no thread of its parent's: it starts with a loop of its own."""
    global _background
    _background = Background()


os.register_at_fork(after_in_child=_forget_after_fork)
