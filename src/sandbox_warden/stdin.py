"""The input of one command: what was sent for it and not yet read by it."""

import os
from typing import Callable

from .loop import WRITE, Loop

_WRITE_SIZE = 256 * 1024


class Stdin:
    """Writes to a command's stdin as the command reads it."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._pending = bytearray()
        self._ended = False
        self.received = 0
        self.taken: Callable[[int], None] = _nobody
        """Told how many bytes the command has taken, so that more may be sent."""

    @property
    def pending(self) -> int:
        return len(self._pending)

    def feed(self, offset: int, data: bytes) -> None:
        """Bytes from offset on. What was received before is skipped, so a resend is harmless."""
        data = data[max(self.received - offset, 0) :]
        if data and not self._ended:
            self.received += len(data)
            self._pending += data
            self._write()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._write()

    def close(self) -> None:
        """The command is over: what it has not read nobody will."""
        self._pending.clear()
        self.end()

    def leave(self, taken: Callable[[int], None]) -> None:
        """Whoever was told by taken does not listen any more."""
        if self.taken == taken:
            self.taken = _nobody

    def _write(self) -> None:
        if self._fd < 0:
            return
        try:
            while self._pending:
                count = os.write(self._fd, self._pending[:_WRITE_SIZE])
                del self._pending[:count]
                self.taken(count)
        except BlockingIOError:
            self._loop.watch(self._fd, WRITE, lambda _events: self._write())
            return
        except OSError:
            self._pending.clear()
            self._ended = True
        self._loop.unwatch(self._fd)
        if self._ended:
            os.close(self._fd)
            self._fd = -1


def _nobody(_count: int) -> None:
    """For a command whose input nobody is sending."""
