"""Reads the output of commands from their pipes into their logs, at the pace of the readers."""

import os
import time
from typing import Callable, Dict

from .command import Command
from .loop import READ, Loop
from .shell import Shell, available

READ_SIZE = 256 * 1024
STALL_S = 10.0
"""How long a stalled reader may block a command before it gets a gap."""
TERMINAL_HOLDS = 256 * 1024
"""More than the kernel keeps of a terminal's output."""
MAX_LATE = 256
"""Most ended commands whose children hold their pipes open, at two descriptors each. Beyond that
the oldest are closed."""


class Pipes:
    """Reads the pipes of commands. on_room(command): an ended one can be drained further."""

    def __init__(self, loop: Loop, on_room: Callable[[Command], None]) -> None:
        self._loop = loop
        self._on_room = on_room
        self._late: Dict[Command, None] = {}

    def watch(self, command: Command) -> None:
        for fd in command.pipes:
            self._loop.watch(fd, READ, self._reader(command, fd))

    def _reader(self, command: Command, fd: int) -> Callable[[int], None]:
        return lambda _events: self._on_output(command, fd)

    def _on_output(self, command: Command, fd: int) -> None:
        room = READ_SIZE if command.result is not None else self._room(command)
        if room <= 0:
            self._pause(command)
        else:
            self._read(command, fd, min(READ_SIZE, room))

    def _read(self, command: Command, fd: int, most: int) -> int:
        """Bytes read; 0 if the pipe is empty or closed."""
        try:
            if command.terminal is not None:
                data = os.read(fd, most)
                data += _more(fd, most - len(data))
            else:  # To ask for 256 KiB takes longer than the read.
                data = os.read(fd, min(most, available(fd)) or 1)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # A terminal that no process has open any more.
        if not data:
            self._close(command, fd)
        elif command.result is not None:
            command.late_bytes += len(data)
        else:
            if command.terminal is not None:
                command.touched = time.monotonic()
            command.wrote(command.pipes[fd], data)
        return len(data)

    def drain(self, command: Command) -> bool:
        """Read what was in the pipes when it ended. False if a slow reader blocks that.

        A process of the box may also read from them, so an empty pipe counts as drained even if
        fewer bytes were read than expected.
        """
        if command.left is None:
            command.left = {fd: self._left(command, fd) for fd in command.pipes}
        for fd in list(command.pipes):
            while command.left[fd] > 0:
                room = self._room(command)
                if room <= 0:
                    self._pause(command)
                    return False
                count = self._read(command, fd, min(READ_SIZE, room, command.left[fd]))
                command.left[fd] = command.left[fd] - count if count else 0
        return True

    def _left(self, command: Command, fd: int) -> int:
        # What a terminal holds is only known by reading it.
        return TERMINAL_HOLDS if command.terminal is not None else available(fd)

    def outlive(self, command: Command) -> None:
        """After its end, read and drop what its children write, so that they do not block."""
        if command.pipes:
            self._late[command] = None
        if len(self._late) > MAX_LATE:
            self.close(next(iter(self._late)))

    def give_back(self, command: Command, shell: Shell) -> None:
        """Leave the pipes to a shell that goes on. They stay watched: that costs nothing, and what
        should be written to them nevertheless is dropped."""
        for fd in command.pipes:
            self._loop.watch(fd, READ, self._dropper(fd))
            shell.take_back(fd)
        command.pipes = {}

    def _dropper(self, fd: int) -> Callable[[int], None]:
        def drop(_events: int) -> None:
            if not os.read(fd, READ_SIZE):
                self._loop.unwatch(fd)

        return drop

    def _room(self, command: Command) -> int:
        """How much may be read now without dropping what a live reader has not got yet."""
        if command.hurried:
            return READ_SIZE
        half = command.log.half
        lags = [f.lag() for f in command.followers if f.live and not f.lossy]
        return half - max(lags, default=0) if lags else READ_SIZE

    def _pause(self, command: Command) -> None:
        if command.paused:
            return
        command.paused = True
        for fd in command.pipes:
            self._loop.unwatch(fd)
        command.stall = self._loop.after(STALL_S, lambda: self._stalled(command))

    def hurry(self, command: Command) -> None:
        """Stop waiting for readers: slow ones get a gap."""
        command.hurried = True
        self.resume(command)

    def _stalled(self, command: Command) -> None:
        for follower in command.followers:
            if follower.live and command.log.half - follower.lag() <= 0:
                follower.lossy = True
        self.resume(command)

    def resume(self, command: Command) -> None:
        """A reader advanced or left: resume reading if the command was paused."""
        if not command.paused or self._room(command) <= 0:
            return
        command.paused = False
        if command.stall is not None:
            command.stall.cancel()
            command.stall = None
        self.watch(command)
        if command.left is not None:
            self._on_room(command)

    def close(self, command: Command) -> None:
        for fd in list(command.pipes):
            self._close(command, fd)

    def _close(self, command: Command, fd: int) -> None:
        self._loop.unwatch(fd)
        del command.pipes[fd]
        os.close(fd)
        if not command.pipes:
            self._late.pop(command, None)


def _more(fd: int, most: int) -> bytes:
    """What else a terminal has, which it gives 4 KiB at a time."""
    pieces = []
    while most > 0:
        try:
            piece = os.read(fd, most)
        except OSError:
            break
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)
