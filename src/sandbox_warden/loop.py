"""A small event loop over epoll: descriptors, timers, and nothing else.

asyncio would be the obvious choice anywhere else; here it would double the memory of an idle box.
"""

import heapq
import select
import time
from typing import Callable, Dict, List, Optional, Tuple

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR

Handler = Callable[[int], None]


class Timer:
    """A call to come. Cancelling it is enough; the loop drops it when its time is reached."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Optional[Callable[[], None]] = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: Dict[int, Handler] = {}
        self._timers: List[Tuple[float, int, Timer]] = []
        self._sequence = 0

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        """Call handler(events) whenever fd is ready. A second watch of the same fd replaces it."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self._sequence += 1
        heapq.heappush(self._timers, (time.monotonic() + delay_s, self._sequence, timer))
        return timer

    def run(self) -> None:
        """Serve for ever: PID 1 has nowhere to return to."""
        while True:
            for fd, events in self._epoll.poll(self._run_timers()):
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler(events)

    def _run_timers(self) -> float:
        """Run what is due; how long to wait for the next one (-1: no timer). What becomes due
        meanwhile waits until the descriptors have had their turn."""
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
            call()
        return -1
