"""The port: streams to the warden over TCP, for a server that has an exec into the box already.

Over the exec the server gives a random key and its certificate (LISTEN). Then, on a connection:

    warden   MAGIC, 32 random bytes (W)
    server   32 random bytes (S), HMAC-SHA256 of "server", W and S with the key
    both     TLS 1.3, in which the warden is the client: the server is the one who has the private
             key to the certificate
    warden   HMAC-SHA256 of "warden", W and S, inside of TLS
    both     frames

The first HMAC keeps everybody else from OpenSSL: who has no key can make the warden hash 64 bytes.
Nothing of it can be used again, as W is another one each time. The last HMAC is only ever sent to
the owner of the certificate, so that nobody in between can pass for the warden.

Anybody who reaches the pod can connect, processes of the box too. They may wait here for a few
seconds, a few at a time, and hold up no stream that is open.
"""

import hashlib
import hmac
import os
import socket
import ssl
from typing import Any, Callable, List, Optional

from .connection import READ_SIZE, Wire
from .loop import READ, Loop

MAGIC = b"sandbox1"
NONCE_SIZE = PROOF_SIZE = 32
_BACKLOG = 64
_HANDSHAKE_S = 5.0
_MAX_STRANGERS = 32
"""Connections whose other end has not shown a key. One more, and the oldest is closed."""
_MAX_KEYS = 4
_SENT_AHEAD = 1 << 20
_AT_ONCE = 256 * 1024
"""Bytes that are encrypted before any of them is sent."""
_KEEPALIVE = ((socket.SO_KEEPALIVE, socket.SOL_SOCKET, 1),
              (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP, 30),
              (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP, 10),
              (socket.TCP_KEEPCNT, socket.IPPROTO_TCP, 3),
              (socket.TCP_NODELAY, socket.IPPROTO_TCP, 1))  # fmt: skip


def proof(key: bytes, whose: bytes, warden_nonce: bytes, server_nonce: bytes) -> bytes:
    """What shows that one has the key. whose: b"server" or b"warden"."""
    return hmac.new(key, whose + warden_nonce + server_nonce, hashlib.sha256).digest()


class Admitted:
    """A server that may connect: its key, and TLS that accepts its certificate alone."""

    def __init__(self, key: bytes, certificate: str) -> None:
        """Raises ValueError."""
        if len(key) < NONCE_SIZE:
            raise ValueError("a key of %d bytes, at least %d" % (len(key), NONCE_SIZE))
        self.key = key
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.check_hostname = False  # It is this one certificate, whatever name it has.
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self.tls.load_verify_locations(cadata=certificate)


class Port:
    """Listens on a bound socket, and hands on what has passed the handshake."""

    def __init__(self, loop: Loop, bound: socket.socket, on_wire: Callable[[Wire], None]) -> None:
        """Raises OSError."""
        self._loop = loop
        self._socket = bound
        self.on_wire = on_wire
        """Raises OSError."""
        self._admitted: List[Admitted] = []
        self._strangers: List[Handshake] = []
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        loop.watch(bound.fileno(), READ, lambda _events: self._accept())

    def admit(self, key: bytes, certificate: str) -> None:
        """Raises ValueError."""
        if not any(hmac.compare_digest(key, each.key) for each in self._admitted):
            self._admitted = [*self._admitted, Admitted(key, certificate)][-_MAX_KEYS:]

    def find(self, shown: bytes, warden_nonce: bytes, server_nonce: bytes) -> Optional[Admitted]:
        """Who has sent this proof."""
        for each in self._admitted:
            if hmac.compare_digest(proof(each.key, b"server", warden_nonce, server_nonce), shown):
                return each
        return None

    def _accept(self) -> None:
        """One at a time, so that streams have their turn. Raises OSError if out of descriptors; the
        loop then retries."""
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        try:
            sock.setblocking(False)
            for option, level, value in _KEEPALIVE:
                sock.setsockopt(level, option, value)
            self._strangers.append(Handshake(self._loop, sock, self))
        except OSError:
            sock.close()
            return
        if len(self._strangers) > _MAX_STRANGERS:
            self._strangers[0].end()

    def known(self, handshake: "Handshake") -> None:
        """It is no stranger any more, or it has ended."""
        if handshake in self._strangers:
            self._strangers.remove(handshake)


class Handshake:
    """With whoever has connected, for a limited time."""

    def __init__(self, loop: Loop, sock: socket.socket, port: Port) -> None:
        """Raises OSError."""
        self._loop = loop
        self._sock = sock
        self._port = port
        self._nonce = os.urandom(NONCE_SIZE)
        self._seen = b""
        self._tls: Optional[Tls] = None
        sock.send(MAGIC + self._nonce)  # Into the empty buffer of a new connection.
        loop.watch(sock.fileno(), READ, lambda _events: self._ready(), on_error=self.end)
        self._late = loop.after(_HANDSHAKE_S, self.end)

    def end(self) -> None:
        if self._late.call is not None:
            self._late.cancel()
        if self._sock.fileno() >= 0:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
        self._port.known(self)

    def _ready(self) -> None:
        try:
            if self._tls is None:
                self._await_proof()
            else:
                self._go_on(self._tls)
        except BlockingIOError:
            pass
        except OSError:  # An SSLError is one.
            self.end()

    def _await_proof(self) -> None:
        data = self._sock.recv(NONCE_SIZE + PROOF_SIZE - len(self._seen))
        self._seen += data
        if not data:
            self.end()
        elif len(self._seen) == NONCE_SIZE + PROOF_SIZE:
            nonce, shown = self._seen[:NONCE_SIZE], self._seen[NONCE_SIZE:]
            admitted = self._port.find(shown, self._nonce, nonce)
            if admitted is None:
                self.end()
                return
            self._port.known(self)
            self._proof = proof(admitted.key, b"warden", self._nonce, nonce)
            self._tls = Tls(admitted.tls)
            self._go_on(self._tls)

    def _go_on(self, tls: "Tls") -> None:
        """Raises OSError, BlockingIOError if the other end has to send more."""
        try:
            tls.object.do_handshake()
        except ssl.SSLWantReadError:
            self._send(tls)
            data = self._sock.recv(READ_SIZE)
            if not data:
                raise ConnectionError("closed during the handshake") from None
            tls.incoming.write(data)
            self._go_on(tls)
            return
        tls.object.write(self._proof)
        self._send(tls)
        self._pass_on(tls)

    def _send(self, tls: "Tls") -> None:
        """A handshake is short: what does not fit into an empty buffer is not sent by a server."""
        data = tls.outgoing.read()
        if data and self._sock.send(data) != len(data):
            raise ConnectionError("no room to send")

    def _pass_on(self, tls: "Tls") -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_AHEAD)
        self._loop.unwatch(self._sock.fileno())
        fds = (os.dup(self._sock.fileno()), os.dup(self._sock.fileno()))
        self.end()
        try:
            self._port.on_wire(TlsWire(tls, *fds))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise


class Tls:
    """One end of TLS, apart from its socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing)


class TlsWire(Wire):
    """A stream inside of TLS."""

    def __init__(self, tls: Tls, read_fd: int, write_fd: int) -> None:
        super().__init__(read_fd, write_fd)
        self._tls = tls
        self._encrypted = memoryview(b"")
        self._count = 0
        """Bytes of the buffers that are in what is encrypted."""

    def read(self) -> bytes:
        data = super().read()
        if not data:
            return b""
        self._tls.incoming.write(data)
        pieces: List[bytes] = []
        try:
            while True:
                piece = self._tls.object.read(READ_SIZE)
                if not piece:
                    break
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        if not pieces:
            raise BlockingIOError
        return b"".join(pieces)

    def write(self, buffers: List[Any]) -> int:
        """Tells what it has taken once all of that is sent, so that the caller waits for it."""
        if not self._encrypted:
            self._encrypt(buffers)
        while self._encrypted:
            sent = os.write(self.write_fd, self._encrypted)
            self._encrypted = self._encrypted[sent:]
        return self._count

    def _encrypt(self, buffers: List[Any]) -> None:
        self._count = 0
        left = memoryview(b"".join(buffers) if len(buffers) > 1 else buffers[0])[:_AT_ONCE]
        while left:
            count = self._tls.object.write(left)
            self._count += count
            left = left[count:]
        self._encrypted = memoryview(self._tls.outgoing.read())
