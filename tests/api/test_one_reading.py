"""Requests that could be read in two ways, and what is sent before and behind them."""

import json
import socket
import time
from collections.abc import Iterator

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.frames import Frame, Opcode

from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.limits import ApiLimits
from tests.api.serving import Served, served, whole_answer

KEY = "key-of-acme"
LIMITS = ApiLimits(header_bytes=4096)
HOST = b"Host: localhost\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
SIZE = b"Content-Length: %d\r\n" % len(SMUGGLED)
LAST = b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
WEBSOCKET = (
    b"GET /ws HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
paths: list[str] = []


def _recording(app: ASGIApp) -> ASGIApp:
    async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope.get("path", ""))
        await app(scope, receive, send)

    return recorded


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(limits=LIMITS, around=_recording) as made:
        yield made


@pytest.fixture(scope="module")
def keyed() -> Iterator[Served]:
    with served(keys=ApiKeys.parse(f"acme:{KEY}"), limits=LIMITS) as made:
        yield made


def statuses(server: Served, *segments: bytes) -> list[int]:
    """Of the answers until the server closes."""
    with server.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(20)
        for number, segment in enumerate(segments):
            if number:
                time.sleep(0.02)  # A segment of its own.
            client.sendall(segment)
        answer = whole_answer(client)
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def head(line: bytes, *headers: bytes) -> bytes:
    return line + b"\r\n" + b"".join(headers) + b"\r\n"


POST = b"POST /execute HTTP/1.1"


@pytest.mark.parametrize(
    "request_head",
    [
        head(POST, HOST, b"Connection: upgrade\r\nUpgrade: h2c\r\n", SIZE),
        head(POST, HOST, b"Connection: upgrade\r\nUpgrade: h2c\r\n", CHUNKED),
        head(POST, HOST, b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
        head(POST, HOST, b"Connection: upgrade\r\nConnection: close\r\nUpgrade: h2c\r\n", SIZE),
        head(POST, HOST, b"Connection: upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n", SIZE),
        head(POST, HOST, b"Connection: upgrade\r\nUpgrade: websocket, h2c\r\n", SIZE),
        head(POST, HOST, b"Connection: upgrade\r\nUpgrade: websocket\r\n", SIZE),
        WEBSOCKET + SIZE + b"\r\n",
        WEBSOCKET + CHUNKED + b"\r\n",
        WEBSOCKET.replace(b"websocket", b"websocket, h2c") + b"\r\n",
        head(b"CONNECT localhost:80 HTTP/1.1", HOST),
        head(
            b"CONNECT localhost:80 HTTP/1.1", HOST, b"Connection: upgrade\r\nUpgrade: websocket\r\n"
        ),
        head(b"POST /execute HTTP/1.0", HOST, CHUNKED),
        head(b"POST /execute HTTP/2.0", HOST, SIZE),
        head(b"GET /health HTTP/0.9", HOST),
        b"GET /health\r\n\r\n",
        head(POST, HOST, b"Transfer-Encoding: gzip, chunked\r\n"),
        head(POST, HOST, b"Transfer-Encoding: identity\r\n"),
        head(POST, HOST, b"Transfer-Encoding: identity\r\n", CHUNKED),
        head(POST, HOST, SIZE, CHUNKED),
        head(POST, SIZE),
        head(POST, HOST, b"Host: other\r\n", SIZE),
        head(b"POST http://other/execute HTTP/1.1", HOST, SIZE),
    ],
)
def test_requests_that_can_be_read_in_two_ways(server: Served, request_head: bytes) -> None:
    """They are the last of their connection, whatever follows and however it comes."""
    paths.clear()
    for segments in (
        (request_head + SMUGGLED + LAST,),
        (request_head, SMUGGLED + LAST),
        (request_head[:-3], request_head[-3:] + SMUGGLED, LAST),
    ):
        assert statuses(server, *segments) == [400]
    assert paths == []


def test_an_answer_to_head_has_no_body(server: Served) -> None:
    with server.connect() as client:
        client.sendall(
            head(b"HEAD /health HTTP/1.1", HOST, b"Connection: upgrade\r\nUpgrade: h2c\r\n")
        )
        assert whole_answer(client).endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "broken", [b"\x00\r\n\r\n", WEBSOCKET + b"\r\n", head(POST, HOST, CHUNKED) + b"x"]
)
def test_requests_before_a_refused_one_are_answered_first(server: Served, broken: bytes) -> None:
    first = head(b"GET /health HTTP/1.1", HOST)
    with server.connect() as client:
        client.sendall(first + first + broken + SMUGGLED)
        answer = whole_answer(client)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"400"]
    assert answer.count(b'"status"') >= 2  # Whole ones.


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_broken_body_has_one_answer(server: Served, seconds: float) -> None:
    for path in (b"/execute", b"/nowhere"):  # One reads its body, the other does not.
        with server.connect() as client:
            client.sendall(head(b"POST " + path + b" HTTP/1.1", HOST, CHUNKED))
            time.sleep(seconds)
            client.sendall(b"nonsense\r\n")
            assert whole_answer(client).count(b"HTTP/1.1 ") == 1


def test_trailers_are_not_headers(keyed: Served) -> None:
    """Not even if they come with the request: what a proxy leaves out would come back in them."""
    request = head(b"POST /execute HTTP/1.1", HOST, CHUNKED)
    chunks = b"2\r\n{}\r\n0\r\nX-API-Key: " + KEY.encode() + b"\r\n\r\n"
    assert statuses(keyed, request + chunks + LAST) == [401, 200]
    assert statuses(keyed, request, chunks + LAST) == [401, 200]


@pytest.mark.parametrize("piece", [b"A: %s\r\n" % (b"b" * 100), b"x" * 100])
def test_trailers_and_extensions_are_bounded(keyed: Served, piece: bytes) -> None:
    start = b"0\r\n" if piece.startswith(b"A") else b"1;"
    segments = [head(POST, HOST, CHUNKED) + start, *([piece * 20] * 6)]
    assert len(statuses(keyed, *segments)) == 1


def test_blanks_around_values(keyed: Served) -> None:
    request = head(b"GET /sessions HTTP/1.1", HOST, b"X-API-Key: \t" + KEY.encode() + b" \t\r\n")
    assert statuses(keyed, request + LAST) == [200, 200]


def test_a_body_that_nobody_asked_for_ends_the_connection(keyed: Served) -> None:
    """Whoever waits to be asked does not send it after another answer; what comes may be either."""
    waiting = head(POST, HOST, b"Expect: 100-continue\r\n", SIZE)
    assert statuses(keyed, waiting, SMUGGLED + LAST) == [401]
    assert statuses(keyed, waiting + SMUGGLED + LAST) == [401, 200]


def test_nobody_is_asked_for_a_body_that_is_none(server: Served) -> None:
    expect = b"Expect: 100-continue\r\n"
    assert statuses(server, head(POST, HOST, expect) + LAST) == [422, 200]
    assert statuses(
        server, head(b"POST /execute HTTP/1.0", HOST, expect, b"Content-Length: 2\r\n") + b"{}"
    ) == [422]


@pytest.mark.parametrize("together", [True, False])
def test_frames_before_the_answer_are_frames(server: Served, together: bool) -> None:
    call = Frame(Opcode.TEXT, b'{"id": 7, "op": "health"}').serialize(mask=True, extensions=[])
    ping = Frame(Opcode.PING, b"x").serialize(mask=True, extensions=[])
    with server.connect() as client:
        client.settimeout(20)
        client.sendall(WEBSOCKET + b"\r\n" + (ping + call if together else b""))
        if not together:
            client.sendall(ping + call)
        found = b""
        while b'"id":7' not in found.replace(b" ", b""):
            piece = client.recv(1000)
            assert piece, found
            found += piece
    assert found.startswith(b"HTTP/1.1 101 ")
    assert json.dumps("x").strip('"').encode() in found


def test_what_follows_a_refused_handshake_is_no_request(server: Served) -> None:
    paths.clear()
    refused = WEBSOCKET.replace(b"/ws", b"/nowhere") + b"\r\n"
    assert statuses(server, refused + SMUGGLED) == [404]
    assert statuses(server, refused, SMUGGLED) == [404]
    assert "/smuggled" not in paths


def test_large_bodies_are_not_framing(server: Served) -> None:
    """In few large pieces, and in chunks of one byte."""
    large = b"Content-Length: 1000000\r\n"
    assert statuses(server, head(POST, HOST, large), bytes(500_000), bytes(500_000) + LAST) == [
        422,
        200,
    ]
    small = b"1\r\n \r\n" * 50_000 + b"0\r\n\r\n"
    assert statuses(server, head(POST, HOST, CHUNKED), small + LAST) == [422, 200]
