"""The door: who may have a stream to the warden. Processes of its own box may not."""

import socket
import struct
from typing import Callable, Optional

from . import processes
from .loop import READ, Loop

_HANDOVER_S = 10.0

OnStream = Callable[[int, int, Optional[socket.socket]], None]
"""A new stream: the descriptors to read from and to write to, and the relay that lent them."""


class Door:
    """Accepts connections on a listening socket.

    relayed: who connects is a relay, which hands over its own stdin and stdout and keeps the
    connection as a sign of life. Otherwise the connection itself is the stream.
    """

    def __init__(self, loop: Loop, listener: socket.socket, *, relayed: bool) -> None:
        self._loop = loop
        self._listener = listener
        self._relayed = relayed

    def open(self, on_stream: OnStream) -> None:
        self._on_stream = on_stream
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), READ, lambda _events: self._accept())

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if not _from_outside(sock):
            sock.close()
        elif self._relayed:
            self._await_stdio(sock)
        else:
            with sock:
                self._on_stream(sock.dup().detach(), sock.dup().detach(), None)

    def _await_stdio(self, sock: socket.socket) -> None:
        sock.setblocking(False)

        def on_ready(_events: int) -> None:
            self._loop.unwatch(sock.fileno())
            late.cancel()
            try:
                _, control, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
                read_fd, write_fd = struct.unpack("ii", control[0][2][:8])
            except (OSError, IndexError, struct.error):
                sock.close()
                return
            self._on_stream(read_fd, write_fd, sock)

        def give_up() -> None:
            self._loop.unwatch(sock.fileno())
            sock.close()

        late = self._loop.after(_HANDOVER_S, give_up)
        self._loop.watch(sock.fileno(), READ, on_ready)


def _from_outside(sock: socket.socket) -> bool:
    """Whether the peer was put in from outside of the box: it has no pid here, or no parent."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    try:
        return pid == 0 or processes.parent_of(pid) == 0
    except (OSError, ValueError):
        return False
