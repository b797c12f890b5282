"""Tunnels: connections to and from sockets of the box, each carried by a channel.

Both directions have their own pace and their own end. Whoever sends has a window, and the other end
grants more with CREDIT as the bytes are taken: a tunnel that nobody reads from holds up no other.
"""

import errno
import os
import socket
from collections import deque
from typing import Callable, Deque, Dict, List, Optional, Tuple, Union

from . import frames
from .connection import Connection, Source
from .errors import Refused, refusal
from .loop import READ, WRITE, Loop

MAX_TUNNELS = 256
_BACKLOG = 64
_LOOPBACK = ("127.0.0.1", "::1")
_CONNECT_S = 10.0

Address = Union[str, Tuple[str, int]]


class Tunnels:
    """All of a box."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: List[Tunnel] = []
        self._listeners: Dict[int, Listener] = {}

    def dial(self, connection: Connection, addresses: List[Address]) -> "Tunnel":
        """A tunnel to the first address that somebody listens at. Raises Refused."""
        tunnel = self._new(connection)
        tunnel.dial(addresses)
        return tunnel

    def accept(self, connection: Connection, port: int) -> "Tunnel":
        """A tunnel that begins with the next connection to a port of the box's loopback, at which
        the warden listens from now on. Raises Refused, OSError."""
        listener = self._listeners.get(port)
        if listener is None:
            listener = self._listeners[port] = Listener(self._loop, port)
        tunnel = self._new(connection)
        listener.wait(tunnel)
        return tunnel

    def _new(self, connection: Connection) -> "Tunnel":
        if len(self._open) >= MAX_TUNNELS:
            message = "the box has %d tunnels open, and may not have more; close some"
            raise Refused("exhausted", message % MAX_TUNNELS)
        tunnel = Tunnel(self._loop, connection, self._open.remove)
        self._open.append(tunnel)
        return tunnel


class Listener:
    """Gives each connection to the tunnel that has waited longest. Those for which there is none
    wait in the kernel's queue."""

    def __init__(self, loop: Loop, port: int) -> None:
        """Raises Refused if somebody else listens there."""
        self._loop = loop
        self._waiting: Deque[Tunnel] = deque()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(_BACKLOG)
        except OSError as exc:
            self._socket.close()
            raise Refused(
                "conflict", "port %d of the box cannot be listened at: %s" % (port, exc)
            ) from None

    def wait(self, tunnel: "Tunnel") -> None:
        self._waiting.append(tunnel)
        self._loop.watch(self._socket.fileno(), READ, lambda _events: self._accept())

    def _accept(self) -> None:
        while self._waiting and self._waiting[0].done:
            self._waiting.popleft()
        if not self._waiting:
            self._loop.unwatch(self._socket.fileno())
            return
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        sock.setblocking(False)
        self._waiting.popleft().begin(sock)


class Tunnel(Source):
    def __init__(
        self, loop: Loop, connection: Connection, on_end: Callable[["Tunnel"], None]
    ) -> None:
        self._loop = loop
        self.connection = connection
        self._on_end = on_end
        self._socket: Optional[socket.socket] = None
        self._begun = self._told = False
        self._refused: Optional[Refused] = None
        self._readable = False
        """Whether the socket may have bytes for us."""
        self._sent_all = False
        """Whether the end of what the box sends was told."""
        self._pending: Deque[memoryview] = deque()
        self._pending_size = 0
        self._taken = 0
        """Bytes that the socket has taken since the last CREDIT."""
        self._received_all = self._shut = False
        self._ended = False

    # Beginning

    def dial(self, addresses: List[Address]) -> None:
        """Raises Refused if nobody can be listening at any of them."""
        self._left = list(addresses)
        self._where = _named(addresses[0])
        self._late = self._loop.after(_CONNECT_S, self._too_late)
        self._dial_next(None)

    def _dial_next(self, error: Optional[OSError]) -> None:
        self._close_socket()
        if not self._left:
            self._give_up(_nobody(self._where, error))
            return
        address = self._left.pop(0)
        family = socket.AF_UNIX if isinstance(address, str) else _family(address)
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            number = self._socket.connect_ex(address)
            if number == errno.EINPROGRESS:  # On the loopback it is made by now, or refused.
                number = self._socket.connect_ex(address)
        except OSError as exc:
            self._dial_next(exc)
            return
        if number in (0, errno.EISCONN):
            self.begin(self._socket)
        elif number == errno.EALREADY:
            self._loop.watch(self._socket.fileno(), WRITE, lambda _events: self._connected())
        else:  # EAGAIN is the full queue of a unix socket: that does not become known later.
            self._dial_next(OSError(number, os.strerror(number)))

    def _connected(self) -> None:
        assert self._socket is not None
        self._loop.unwatch(self._socket.fileno())
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._dial_next(OSError(number, os.strerror(number)))
        else:
            self.begin(self._socket)

    def _too_late(self) -> None:
        if not self._begun and not self.done:
            error = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            self._give_up(_nobody(self._where, error))

    def begin(self, sock: socket.socket) -> None:
        """With a connected socket."""
        self._socket = sock
        self._begun = True
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._readable = True
        self.connection.pump_soon()

    def _give_up(self, refused: Refused) -> None:
        self._refused = refused
        self.connection.pump_soon()

    # What the box sends

    def pull(self) -> Optional[bytes]:
        if self._refused is not None:
            return self.refuse(self._refused)
        if not self._begun:
            return None
        if not self._told:
            self._told = True
            return frames.encode_json(frames.STARTED, self.channel, {})
        if self._taken >= frames.WINDOW // 2:
            granted, self._taken = self._taken, 0
            return frames.encode(frames.CREDIT, self.channel, frames.OFFSET.pack(granted))
        if self._sent_all:
            return self.answer({}) if self._shut else None
        if not self._readable or self._credit <= 0:
            return None
        return self._read()

    def _read(self) -> Optional[bytes]:
        assert self._socket is not None
        try:
            data = self._socket.recv(min(frames.CHUNK, self._credit))
        except BlockingIOError:
            self._readable = False
            self._watch()
            return None
        except OSError as exc:
            return self.refuse(_broken(exc))
        if data:
            self._credit -= len(data)
            return frames.encode(frames.DATA, self.channel, data)
        self._sent_all = True
        if self._shut:
            self.connection.pump_soon()
        self._watch()
        return frames.encode(frames.EOF, self.channel)

    # What the box receives

    def data(self, payload: bytes) -> None:
        if self._received_all or not self._begun:
            self._give_up(Refused("invalid_request", "bytes that nobody waits for"))
            return
        if self._pending_size + len(payload) > frames.WINDOW + frames.CHUNK:
            self._give_up(Refused("invalid_request", "more bytes than were granted"))
            return
        self._pending.append(memoryview(payload))
        self._pending_size += len(payload)
        self._write()

    def eof(self) -> None:
        self._received_all = True
        if self._begun:
            self._write()

    def _write(self) -> None:
        assert self._socket is not None
        try:
            while self._pending:
                count = self._socket.send(self._pending[0])
                self._taken += count
                self._pending_size -= count
                if count < len(self._pending[0]):
                    self._pending[0] = self._pending[0][count:]
                else:
                    self._pending.popleft()
            if self._received_all and not self._shut:
                self._shut = True
                self._socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as exc:
            if self._sent_all or exc.errno not in (errno.EPIPE, errno.ENOTCONN):
                self._give_up(_broken(exc))
                return
            # Nobody reads any more, but what the box has sent may still be on its way.
            self._taken += self._pending_size
            self._pending.clear()
            self._pending_size = 0
            self._shut = self._received_all = True
        self._watch()
        self.connection.pump_soon()

    # Both

    def _watch(self) -> None:
        if self._socket is None:
            return
        wanted = 0 if self._readable or self._sent_all else READ
        if self._pending:
            wanted |= WRITE
        if wanted:
            self._loop.watch(self._socket.fileno(), wanted, self._ready, on_error=self._fail)
        else:
            self._loop.unwatch(self._socket.fileno())

    def _ready(self, events: int) -> None:
        if events & ~WRITE:
            self._readable = True
        if self._pending:
            self._write()
        else:
            self._watch()
            self.connection.pump()

    def _fail(self) -> None:
        self._give_up(Refused("internal", "the tunnel failed"))

    def _close_socket(self) -> None:
        if self._socket is not None:
            sock, self._socket = self._socket, None
            self._loop.unwatch(sock.fileno())
            sock.close()

    def closed(self) -> None:
        if not self._ended:
            self._ended = self.done = True
            self._close_socket()
            self._on_end(self)


def addresses_of(body: Dict[str, object]) -> List[Address]:
    """Where a request wants to connect to. Raises Refused."""
    path = body.get("path")
    if path is not None:
        if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
            raise Refused("invalid_path", "the path of a socket begins with a slash")
        return [path]
    port = port_of(body)
    return [(host, port) for host in _LOOPBACK]


def port_of(body: Dict[str, object]) -> int:
    """Raises Refused."""
    port = body.get("port")
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise Refused("invalid_request", "port %r is not between 1 and 65535" % (port,))
    return port


def _broken(error: OSError) -> Refused:
    return Refused("broken", "the connection broke: %s" % error.strerror)


def _family(address: Tuple[str, int]) -> int:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def _named(address: Address) -> str:
    return address if isinstance(address, str) else "port %d" % address[1]


def _nobody(where: str, error: Optional[OSError]) -> Refused:
    if error is not None and error.errno not in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL,
                                                 errno.EAFNOSUPPORT, errno.ETIMEDOUT):  # fmt: skip
        refused = refusal(error)
        return Refused(refused.code, "cannot connect to %s: %s" % (where, refused))
    return Refused("not_listening", "nobody listens at %s of the sandbox" % where)
