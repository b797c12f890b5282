"""Terminals: their size, and keys that are signals."""

import fcntl
import os
import signal
import struct
import termios
from typing import Dict, NoReturn, Tuple

Size = Tuple[int, int]
"""Rows and columns."""
_IGNORED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip


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
