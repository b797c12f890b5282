"""The input of a command: its stdin, and the keys and the size of a terminal."""

import fcntl
import os
import signal
import struct
import termios
from typing import Callable, Dict, NoReturn, Optional, Set, Tuple

from .errors import Refused
from .loop import WRITE, Loop

Size = Tuple[int, int]
"""Rows and columns."""
_IGNORED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
PENDING_LIMIT = 1 << 20
END_OF_INPUT = b"\x04"
_WRITE_SIZE = 256 * 1024


def resize(fd: int, size: Size) -> None:
    """Its foreground processes get SIGWINCH from the kernel."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


class Keys:
    """Does what gVisor's kernel leaves out: Ctrl-C, Ctrl-\\ and Ctrl-Z are signals to the processes
    in the foreground, and so is a new size. Which these are can be asked only by a process of the
    terminal's session (signal_foreground), so one there is told what to send."""

    def __init__(self, terminal: int, told: int) -> None:
        self._terminal = terminal
        self._told = told

    @classmethod
    def missing(cls, terminal: int) -> bool:
        """Whether the kernel of this terminal leaves that out."""
        try:
            os.tcgetpgrp(terminal)
        except OSError:
            return True
        return False

    def typed(self, data: bytes) -> bytes:
        """Send the signals among the keys; returns the others."""
        signals = self._signals()
        if not any(key in data for key in signals):
            return data
        others = bytearray()
        for number in data:
            if (key := bytes([number])) in signals:
                self.send(signals[key])
            else:
                others += key
        return bytes(others)

    def send(self, number: int) -> None:
        try:
            os.write(self._told, bytes([number]))
        except OSError:
            pass  # Somebody has killed the process that is told.

    def _signals(self) -> Dict[bytes, int]:
        """By key, as programs have set the terminal at this moment."""
        try:
            settings = termios.tcgetattr(self._terminal)
        except termios.error:
            return {}
        if not settings[3] & termios.ISIG:
            return {}
        keys = settings[6]
        return {
            keys[termios.VINTR]: signal.SIGINT,
            keys[termios.VQUIT]: signal.SIGQUIT,
            keys[termios.VSUSP]: signal.SIGTSTP,
        }


def signal_foreground(told: int) -> NoReturn:
    """Send the foreground processes of this session's terminal, at descriptor 0, the signals that
    come through a pipe, until its end."""
    os.setpgid(0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    while True:
        message = os.read(told, 1)
        if not message:
            os._exit(0)
        try:
            os.killpg(os.tcgetpgrp(0), message[0])
        except OSError:
            pass  # The group has just ended.


class Stdin:
    """Writes to a command's stdin as the command reads it.

    to_be_sent: whether input may be sent after the start (STDIN requests). on_terminal: whether its
    end is told by ^D, as there is no other. keys: takes out keys that are signals.
    """

    def __init__(
        self,
        loop: Loop,
        fd: int,
        *,
        to_be_sent: bool,
        on_terminal: bool = False,
        keys: Optional[Keys] = None,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._pending = bytearray()
        self._ended = False
        self._on_terminal = on_terminal
        self._keys = keys
        self.to_be_sent = to_be_sent
        self.received = 0
        self.waiting: Set[Callable[[], None]] = set()
        """Called when there may be room for more, and when stdin is closed."""

    def has_room(self, count: int) -> bool:
        """Whether `count` bytes can be taken now; True if closed, since take() refuses then."""
        pending = len(self._pending)
        return self._ended or pending == 0 or pending + count <= PENDING_LIMIT

    def take(self, data: bytes, *, offset: Optional[int], end: bool) -> int:
        """Take input at offset, by default after the last; end: closes stdin after it.

        Bytes received before are skipped, so repeating is idempotent. Returns the total received.
        Raises Refused.
        """
        if offset is not None:
            if offset > self.received:
                message = "stdin has received %d bytes: offset %d would leave a hole"
                raise Refused("invalid_request", message % (self.received, offset))
            data = data[self.received - offset :]
        if data and self._ended:
            raise Refused("stdin_closed", "its stdin is closed and takes no more input")
        self.received += len(data)
        self._pending += data if self._keys is None else self._keys.typed(data)
        if end and self._on_terminal:
            self._pending += END_OF_INPUT
        else:
            self._ended = self._ended or end
        self._write()
        return self.received

    def close(self) -> None:
        """The command has ended: drop what it did not read."""
        self._pending.clear()
        self._ended = True
        self._write()

    def _write(self) -> None:
        if self._fd < 0:
            return
        try:
            while self._pending:
                count = os.write(self._fd, self._pending[:_WRITE_SIZE])
                del self._pending[:count]
        except BlockingIOError:
            self._loop.watch(self._fd, WRITE, lambda _events: self._write())
            self._notify()
            return
        except OSError:
            self._pending.clear()
            self._ended = True
        self._loop.unwatch(self._fd)
        if self._ended:
            os.close(self._fd)
            self._fd = -1
        self._notify()

    def _notify(self) -> None:
        """Deferred: a waiter may be the current caller."""
        for wake in self.waiting:
            self._loop.after(0, wake)
