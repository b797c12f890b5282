"""A small event loop over epoll: descriptors and timers.

Not asyncio, which would double the memory of an idle box.

It runs PID 1, so a failing handler must not end it.
"""

import heapq
import select
import time
from typing import Callable, Dict, List, Optional, Set, Tuple

from .errors import report

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
FEW_TIMERS = 64
"""Among so many, cancelled ones are not looked for."""
PAUSE_S = 0.2
"""How long a descriptor is not watched after its handler failed: it may fail every time."""

Handler = Callable[[int], None]
Call = Callable[[], None]


class Timer:
    """A scheduled call. A cancelled one is dropped when it is due, or when there are many."""

    __slots__ = ("at", "call")

    def __init__(self, call: Call, at: float) -> None:
        self.call: Optional[Call] = call
        self.at = at
        """When it is due, on the monotonic clock."""

    def cancel(self) -> None:
        self.call = None


class _Watch:
    """A watched descriptor, or one paused after its handler failed."""

    __slots__ = ("events", "handler", "on_error", "paused")

    def __init__(self, events: int, handler: Handler, on_error: Optional[Call]) -> None:
        self.events = events
        self.handler = handler
        self.on_error = on_error
        self.paused = False


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: Dict[int, _Watch] = {}
        self._new: Set[int] = set()
        self._timers: List[Tuple[float, int, Timer]] = []
        self._sequence = 0
        self._many = FEW_TIMERS
        """Timers before cancelled ones are dropped."""

    def watch(
        self, fd: int, events: int, handler: Handler, *, on_error: Optional[Call] = None
    ) -> None:
        """Call handler(events) whenever fd is ready. A second watch of the same fd replaces it.

        on_error: called if the handler raises, to close fd. Without it, fd is watched again after
        a pause. Raises OSError.
        """
        before = self._watches.get(fd)
        if before is not None and not before.paused:
            if before.events != events:
                self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._new.add(fd)
        self._watches[fd] = _Watch(events, handler, on_error)

    def unwatch(self, fd: int) -> None:
        watch = self._watches.pop(fd, None)
        if watch is not None and not watch.paused:
            self._epoll.unregister(fd)

    def after(self, delay_s: float, call: Call) -> Timer:
        """Call once, after `delay_s` seconds."""
        if len(self._timers) >= self._many:
            self._drop_cancelled()
        timer = Timer(call, time.monotonic() + delay_s)
        self._sequence += 1
        heapq.heappush(self._timers, (timer.at, self._sequence, timer))
        return timer

    def _drop_cancelled(self) -> None:
        """Most time limits are cancelled long before they are due."""
        self._timers = [entry for entry in self._timers if entry[2].call is not None]
        heapq.heapify(self._timers)
        self._many = max(2 * len(self._timers), FEW_TIMERS)

    def run(self) -> None:
        """Run forever: PID 1 must not return."""
        while True:
            try:
                self.turn()
            except Exception:
                report()
                time.sleep(PAUSE_S)

    def turn(self) -> None:
        """Run the timers that are due, then wait for descriptors and handle the ready ones."""
        ready = self._epoll.poll(self._run_timers())
        self._new.clear()
        for fd, events in ready:
            watch = self._watches.get(fd)
            # It may have been closed by an earlier handler, and its number reused.
            if watch is not None and fd not in self._new:
                try:
                    watch.handler(events)
                except Exception:
                    self._failed(fd, watch)

    def _failed(self, fd: int, watch: _Watch) -> None:
        report()
        if watch.on_error is not None:
            try:
                watch.on_error()
            except Exception:
                report()
        elif self._watches.get(fd) is watch:
            self._epoll.unregister(fd)
            watch.paused = True
            self.after(PAUSE_S, lambda: self._go_on(fd, watch))

    def _go_on(self, fd: int, watch: _Watch) -> None:
        if self._watches.get(fd) is watch:
            self.watch(fd, watch.events, watch.handler)

    def _run_timers(self) -> float:
        """Run what is due; returns the time until the next one (-1: none). Timers that become due
        meanwhile wait until the descriptors had their turn."""
        now = time.monotonic()
        while self._timers:
            when, _, timer = self._timers[0]
            if timer.call is None:
                heapq.heappop(self._timers)
                continue
            if when > now:
                return max(when - time.monotonic(), 0)
            heapq.heappop(self._timers)
            call, timer.call = timer.call, None
            try:
                call()
            except Exception:
                report()
        return -1
