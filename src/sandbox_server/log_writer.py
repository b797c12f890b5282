"""Writes log lines: those of requests in batches and in a thread of its own, all others at once."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from typing import Protocol, TextIO

from structlog.typing import EventDict

HOLD_S = 0.05
"""How long the line of a request may wait for others, to be written with them. A server that is
killed loses no more than this."""
MOST_HELD = 10_000
"""If so many lines wait, because nobody reads the log, requests wait too: no line is dropped."""


class Render(Protocol):
    def __call__(self, event: EventDict, /) -> str: ...


class LineWriter:
    """Keeps the order of the lines. May be used by any number of threads."""

    def __init__(self, stream: TextIO, render: Render) -> None:
        self._stream = stream
        self._render = render
        self._start_over()
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        """Also in a forked child: it has no thread, and the parent writes what was held."""
        self._held: deque[EventDict] = deque()
        self._writing = threading.Lock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, event: EventDict) -> None:
        """Have it written soon."""
        self._held.append(event)
        if len(self._held) > MOST_HELD:
            self.flush()
        elif not self._some.is_set():
            self._some.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()

    def write(self, event: EventDict) -> None:
        """Write it at once, after everything that is held."""
        self._held.append(event)
        self.flush()

    def flush(self) -> None:
        with self._writing:
            # A log that cannot be written, or a line that cannot be rendered, fails no call.
            lines = [self._rendered(event) for event in _taken(self._held)]
            if lines:
                with contextlib.suppress(OSError, ValueError):
                    self._stream.write("\n".join(lines) + "\n")
                    self._stream.flush()

    def _rendered(self, event: EventDict) -> str:
        try:
            return self._render(event)
        except Exception as exc:
            return self._render({"event": "log.failed", "error": type(exc).__name__})

    def _run(self) -> None:
        pause = threading.Event()
        while self._some.wait():
            pause.wait(HOLD_S)
            self._some.clear()
            self.flush()


def _taken(held: deque[EventDict]) -> list[EventDict]:
    """As many as there are now: others may go on adding."""
    return [held.popleft() for _ in range(len(held))]
