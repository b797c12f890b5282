"""The server name in the first message of a TLS client. Pure."""

from __future__ import annotations

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _HOST_NAME = 0, 0
MAX_HELLO = 1 << 16
UNRECOGNIZED_NAME = bytes([21, 3, 1, 0, 2, 2, 112])
"""A TLS alert: what a server says that has another name."""


class BadHello(ValueError):
    """Begins like TLS, and is not a whole ClientHello."""


def looks_like_tls(data: bytes) -> bool | None:
    """None if that takes more bytes to tell."""
    if len(data) < 2:
        return None if data[:1] in (b"", bytes([_HANDSHAKE])) else False
    return data[0] == _HANDSHAKE and data[1] == 3


def server_name(data: bytes) -> str | None:
    """The name a client asks for, in lower case; empty if it does not say, None if more bytes are
    needed. Raises BadHello."""
    hello = _handshake(data)
    return None if hello is None else _name_in(_Reader(hello))


def _handshake(data: bytes) -> bytes | None:
    """The ClientHello, out of as many records as it takes."""
    joined, at = bytearray(), 0
    if len(data) > 2 * MAX_HELLO:
        raise BadHello("a ClientHello that is too long")
    while True:
        if len(joined) >= 4:
            if joined[0] != _CLIENT_HELLO:
                raise BadHello("not a ClientHello")
            size = int.from_bytes(joined[1:4], "big")
            if size > MAX_HELLO:
                raise BadHello("a ClientHello that is too long")
            if len(joined) >= 4 + size:
                return bytes(joined[4 : 4 + size])
        if len(data) < at + 5:
            return None
        kind, size = data[at], int.from_bytes(data[at + 3 : at + 5], "big")
        if kind != _HANDSHAKE or data[at + 1] != 3 or not 0 < size <= 1 << 14:
            raise BadHello("not a record of a handshake")
        if len(data) < at + 5 + size:
            return None
        joined += data[at + 5 : at + 5 + size]
        at += 5 + size


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise BadHello("a ClientHello that is cut off")
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def block(self, size: int) -> _Reader:
        """What follows a length of so many bytes."""
        return _Reader(self.take(self.number(size)))


def _name_in(hello: _Reader) -> str:
    hello.take(2 + 32)  # Version and random.
    hello.block(1)  # Session id.
    hello.block(2)  # Ciphers.
    hello.block(1)  # Compression.
    if not hello:
        return ""
    names: list[str] = []
    extensions = hello.block(2)
    while extensions:
        kind, content = extensions.number(2), extensions.block(2)
        if kind == _SERVER_NAME:
            names += _listed(content)
    if len(names) > 1:
        raise BadHello("more than one server name")
    return names[0] if names else ""


def _listed(extension: _Reader) -> list[str]:
    found, entries = [], extension.block(2)
    while entries:
        if entries.number(1) != _HOST_NAME:
            raise BadHello("a server name of an unknown kind")
        name = entries.block(2)
        try:
            found.append(name.rest().decode("ascii").lower().removesuffix("."))
        except UnicodeDecodeError:
            raise BadHello("a server name that is not ASCII") from None
    return found
