"""Requests of all kinds of framing, as bytes, and the answers to them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.deploy.proxies import HOST

KEY = "a-key-of-acme"
SMUGGLED = "smuggled"
_SEED = 20261119


@dataclass(frozen=True)
class Case:
    number: int
    about: str
    data: bytes
    cut: int
    """Where it is cut into two segments."""
    refused: bool
    """Whether it can be read in several ways."""
    waits: bool
    """Whether it says that it waits to be asked for its body."""
    opens: bool
    """Whether it is the handshake of a WebSocket."""

    @property
    def id(self) -> str:
        return f"case-{self.number}"

    @property
    def after(self) -> str:
        """The id of the request behind it on its connection."""
        return f"after-{self.number}"

    def next_request(self) -> bytes:
        head = f"GET /sessions HTTP/1.1\r\nHost: {HOST}\r\nX-Request-ID: {self.after}\r\n"
        return f"{head}X-API-Key: {KEY}\r\nConnection: close\r\n\r\n".encode()


METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS")
EXPECT = ("", "", "Expect: 100-continue\r\n")
UPGRADES = {
    "": False,
    "Upgrade: h2c\r\n": False,
    "Connection: upgrade\r\n": False,
    "Connection: keep-alive\r\nUpgrade: websocket\r\n": False,
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n": True,
    "Connection: upgrade\r\nUpgrade: TLS/1.0\r\n": True,
    "Connection: keep-alive, Upgrade\r\nUpgrade: foo\r\n": True,
    "Connection: upgrade\r\nUpgrade: websocket, foo\r\n": True,
    "Connection: upgrade\r\nUpgrade: websocketx\r\n": True,
    "Connection: upgrade\r\nUpgrade: WebSocket\r\n": True,
}
"""Headers, and whether they are refused whatever else a request has: the last one is if it has a
body, or is no handshake otherwise."""


def _chunks(body: bytes, extension: str = "", trailer: str = "") -> bytes:
    half = len(body) // 2
    pieces = [piece for piece in (body[:half], body[half:]) if piece]
    data = b"".join(f"{len(each):x}{extension}\r\n".encode() + each + b"\r\n" for each in pieces)
    return data + f"0\r\n{trailer}\r\n".encode()


def framings(body: bytes) -> Iterator[tuple[str, str, bytes, bool]]:
    """Name, headers, what follows them, and whether that is refused. Both readings of a request
    with two lengths end at the same byte."""
    size, chunks = len(body), _chunks(body)
    chunked, length = "Transfer-Encoding: chunked\r\n", f"Content-Length: {len(chunks)}\r\n"
    yield "none", "", b"", False
    yield "zero", "Content-Length: 0\r\n", b"", False
    yield "length", f"Content-Length: {size}\r\n", body, False
    yield "chunks", chunked, chunks, False
    yield "CHUNKS", "TRANSFER-ENCODING:Chunked\r\n", chunks, False
    yield "extension", chunked, _chunks(body, ";a=b"), False
    yield "trailer", chunked, _chunks(body, trailer=f"X-API-Key: {KEY}\r\n"), False
    yield "both", length + chunked, chunks, True
    yield "both, other order", chunked + length, chunks, True
    yield "two lengths", f"Content-Length: {size}\r\nContent-Length: {size + 1}\r\n", body, True
    yield "identity", "Transfer-Encoding: identity\r\n", body, True
    yield "unknown", "Transfer-Encoding: xchunked\r\n", chunks, True
    yield "twice", chunked + chunked, chunks, True
    yield "signed", f"Content-Length: +{size}\r\n", body, True
    yield "negative", "Content-Length: -1\r\n", body, True
    yield "blank before colon", f"Content-Length : {size}\r\n", body, True
    yield "NUL", f"A: \x00\r\nContent-Length: {size}\r\n", body, True
    yield "bad chunk", chunked, b"0x5\r\n" + body, True


def generated(count: int) -> list[Case]:
    rng = random.Random(_SEED)
    upgrades = list(UPGRADES)
    return [_case(number, rng, upgrades) for number in range(count)]


def _case(number: int, rng: random.Random, upgrades: list[str]) -> Case:
    method, upgrade, expect = rng.choice(METHODS), rng.choice(upgrades), rng.choice(EXPECT)
    body = f"GET /{SMUGGLED} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {KEY}\r\n\r\n".encode()
    framing, headers, follows, doubtful = rng.choice(list(framings(body)))
    handshake = "WebSocket" in upgrade
    opens = handshake and method == "GET" and framing in ("none", "zero") and not doubtful
    path = "/ws" if handshake else rng.choice(("/execute", "/sessions", "/nowhere"))
    key = rng.choice(("", f"Authorization: Bearer {KEY}\r\n"))
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nX-Request-ID: case-{number}\r\n{key}"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"{upgrade}{expect}{headers}\r\n"
    )
    data = head.encode() + follows
    refused = doubtful or (UPGRADES[upgrade] and not opens)
    about = f"{method} {path} {framing!r} {upgrade.strip()!r} {expect.strip()} {bool(key)}"
    return Case(number, about, data, rng.randrange(1, len(data)), refused, bool(expect), opens)


@dataclass(frozen=True)
class Answer:
    status: int
    id: str
    """Of the request that it answers; "" if it does not say."""


def answers(data: bytes, method: bytes) -> list[Answer]:
    """Those on one connection, without interim ones. method: of the first request."""
    found: list[Answer] = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, f"an answer without end: {head!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), f"no answer: {first!r}"
        status = int(first.split()[1])
        headers = {
            name.lower(): value.strip() for name, _, value in (li.partition(":") for li in lines)
        }
        if 100 <= status < 200 and status != 101:
            continue
        # haproxy answers a HEAD that it cannot read with a body, and closes.
        bodiless = method == b"HEAD" and not found and (not data or data.startswith(b"HTTP/"))
        found.append(Answer(status, headers.get("x-request-id", "")))
        if status == 101:
            break
        if bodiless or status in (204, 304):
            continue
        if headers.get("transfer-encoding") == "chunked":
            data = _after_chunks(data)
        else:
            data = data[int(headers.get("content-length", len(data))) :]
    return found


def _after_chunks(data: bytes) -> bytes:
    while True:
        size, _, data = data.partition(b"\r\n")
        data = data[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            return data
