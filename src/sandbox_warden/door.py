"""The door: decides who may open a stream to the warden. Processes of its own box may not.

A process from outside has no pid in the box (a server on the same machine), or a pid without a
parent (`docker exec`). SO_PEERCRED gives the pid that connected, which proves nothing for a relay:
the connection may have been passed on, its creator may be dead, and the pid reused, in the worst
case by a relay. gVisor even returns the pid of the caller.

So a relay has to answer a random challenge, and the kernel adds the sender's pid to the answer
(SCM_CREDENTIALS). If that process has no parent and started before the challenge was sent, it had
the pid from before the challenge until after the answer, so nobody else can have sent the answer.
The start time is exact to a hundredth of a second; a pid is reused only after all others, which
takes longer.

The same proof lets whoever has an exec end the box: it cannot signal PID 1.

A pid of 0 from SO_PEERCRED needs no challenge: a process of the box keeps its pid there even when
dead. (In SCM_CREDENTIALS a 0 proves nothing: gVisor gives it for a sender that is gone.)
"""

import os
import socket
import struct
from typing import Callable, List, Optional, Tuple

from . import processes
from .loop import READ, Loop
from .relay import CHALLENGE_SIZE, END

_SENT_AHEAD = 1 << 20
"""Bytes that wait in the kernel for the server: with the 208 KiB of a new socket, both ends would
wait for each other after every piece."""
_HANDOVER_S = 10.0
_MAX_WAITING = 32
"""Most pending handovers. One more, and the oldest is refused."""
_CREDENTIALS = struct.Struct("3i")
_TWO_FDS = struct.Struct("2i")
_CONTROL_SIZE = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_TWO_FDS.size)

OnStream = Callable[[int, int, Optional[socket.socket]], None]
"""Called with a new stream: the descriptors to read and write, and the relay they came from."""


class Door:
    """Accepts connections on a listening socket.

    relayed: peers are relays, which hand over their stdin and stdout and keep the connection open
    as a sign of life. Otherwise the connection itself is the stream.
    """

    def __init__(self, loop: Loop, listener: socket.socket, *, relayed: bool) -> None:
        self._loop = loop
        self._listener = listener
        self._relayed = relayed
        self._waiting: List[Handover] = []

    def open(self, on_stream: OnStream) -> None:
        self._on_stream = on_stream
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), READ, lambda _events: self._accept())

    def _accept(self) -> None:
        """Raises OSError if out of descriptors; the loop then retries."""
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_AHEAD)
            pid = _peer(sock)
            if self._relayed and (pid == 0 or processes.parent_of(pid) == 0):
                self._await_stdio(sock, challenge=pid != 0)
                return
            if pid == 0:
                self._pass_on(sock.dup().detach(), sock.dup().detach(), None)
        except BaseException:
            sock.close()
            raise
        sock.close()

    def _await_stdio(self, sock: socket.socket, *, challenge: bool) -> None:
        def on_stdio(fds: Optional[Tuple[int, int]]) -> None:
            self._waiting.remove(handover)
            if fds is None:
                sock.close()
            else:
                self._pass_on(*fds, sock)

        handover = Handover(self._loop, sock, on_stdio, challenge=challenge)
        self._waiting.append(handover)
        if len(self._waiting) > _MAX_WAITING:
            self._waiting[0].refuse()

    def _pass_on(self, read_fd: int, write_fd: int, relay: Optional[socket.socket]) -> None:
        try:
            self._on_stream(read_fd, write_fd, relay)
        except BaseException:
            os.close(read_fd)
            os.close(write_fd)
            if relay is not None:
                self._loop.unwatch(relay.fileno())
                relay.close()
            raise


class Handover:
    """Waits, for a limited time, until a relay hands over its stdin and stdout. on_stdio gets None
    if it does not, or is not a relay."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_stdio: Callable[[Optional[Tuple[int, int]]], None],
        *,
        challenge: bool,
    ) -> None:
        """Raises OSError."""
        self._loop = loop
        self._sock = sock
        self._on_stdio = on_stdio
        self._challenge = b""
        sock.setblocking(False)
        if challenge:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._challenge = os.urandom(CHALLENGE_SIZE)
            self._asked = processes.ticks()
            sock.send(self._challenge)
        loop.watch(sock.fileno(), READ, lambda _events: self._ready(), on_error=self.refuse)
        self._late = loop.after(_HANDOVER_S, self.refuse)

    def refuse(self) -> None:
        self._end(None)

    def _ready(self) -> None:
        try:
            fds = self._receive()
        except BlockingIOError:
            return
        self._end(fds)

    def _receive(self) -> Optional[Tuple[int, int]]:
        data, control, _, _ = self._sock.recvmsg(
            CHALLENGE_SIZE + len(END), _CONTROL_SIZE, socket.MSG_CMSG_CLOEXEC
        )
        sender, fds = 0, []
        for _level, kind, value in control:
            if kind == socket.SCM_RIGHTS:
                fds = [fd for (fd,) in struct.iter_unpack("i", value[: len(value) // 4 * 4])]
            elif kind == socket.SCM_CREDENTIALS:
                sender = _CREDENTIALS.unpack(value)[0]
        if data == self._challenge + END and self._is_answer(self._challenge, sender):
            os._exit(0)  # PID 1: everything in the box ends with it.
        if len(fds) == 2 and (not self._challenge or self._is_answer(data, sender)):
            return fds[0], fds[1]
        for fd in fds:
            os.close(fd)
        return None

    def _is_answer(self, data: bytes, sender: int) -> bool:
        if data != self._challenge or sender <= 0:
            return False
        try:
            process = processes.look_at(sender)
        except (OSError, ValueError):
            return False
        return process.parent == 0 and process.started <= self._asked

    def _end(self, fds: Optional[Tuple[int, int]]) -> None:
        if self._late.call is not None:
            self._late.cancel()
            self._loop.unwatch(self._sock.fileno())
            self._on_stdio(fds)


def _peer(sock: socket.socket) -> int:
    """The pid that connected; 0 for a process outside the box."""
    value = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(value)[0])
