"""Clients that connect and say nothing, little, or too much, over real sockets."""

import contextlib
import re
import socket
from collections.abc import Iterator

import pytest

from sandbox_server.api.limits import ApiLimits
from tests.api.serving import Served, eventually, served, whole_answer

TINY = ApiLimits(header_timeout_s=0.3, header_bytes=4096, connections=40, idle_connections=30)
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(limits=TINY) as made:
        yield made


def test_half_a_header_is_not_waited_for(server: Served) -> None:
    with server.connect() as client:
        client.sendall(HEAD)
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer
    assert re.search(rb"x-request-id: ([0-9a-f]{32})\r\n.*\1", answer, re.S)


def test_nothing_at_all_is_not_waited_for(server: Served) -> None:
    with server.connect() as client:
        assert whole_answer(client) == b""


def test_half_a_header_of_a_later_request(server: Served) -> None:
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n" + HEAD)
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


def test_a_header_that_comes_in_drops(server: Served) -> None:
    """Bytes that go on coming do not buy time."""
    with server.connect() as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(HEAD)
        for _ in range(5000):
            client.sendall(b"A: b\r\n"[:1])
            client.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                assert client.recv(12) == b"HTTP/1.1 408"
                return
    raise AssertionError("it went on for ever")


def test_a_body_that_nobody_reads_is_not_waited_for(server: Served) -> None:
    with server.connect() as client:
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\nhalf")
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"".join(b"A%d: b\r\n" % number for number in range(2000)),
        HEAD + b"A: " + b"b" * 20_000,
        b"GET /" + b"x" * 20_000,
    ],
)
def test_a_header_without_end(server: Served, head: bytes) -> None:
    with server.connect() as client:
        client.sendall(head)
        assert whole_answer(client).startswith(b"HTTP/1.1 413 ")


def idle(server: Served, number: int) -> list[socket.socket]:
    return [server.connect() for _ in range(number)]


def test_idle_connections_keep_nobody_out() -> None:
    limits = ApiLimits(header_timeout_s=60, connections=200, idle_connections=100)
    with served(limits=limits) as server, contextlib.ExitStack() as stack:
        for client in idle(server, 1000):
            stack.callback(client.close)
        assert server.http.get("/health").status_code == 200
        with server.connect() as client:
            client.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert whole_answer(client).startswith(b"HTTP/1.1 200 ")


def test_busy_connections_are_bounded() -> None:
    start = (
        b"POST /execute HTTP/1.1\r\nHost: localhost\r\n"
        b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    )
    with served(limits=ApiLimits(connections=3)) as server, contextlib.ExitStack() as stack:
        for client in idle(server, 3):
            stack.enter_context(client)
            client.sendall(start)
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        with server.connect() as client:
            client.sendall(HEAD + b"\r\n")
            answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"capacity"' in answer
    assert b"retry-after: 1\r\n" in answer.lower()


UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def test_a_websocket_to_nowhere_is_answered_like_any_request(server: Served) -> None:
    for _ in range(TINY.connections + 1):
        with server.connect() as client:
            client.sendall(UPGRADE % b"/nowhere")
            answer = whole_answer(client)
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b'"not_found"' in answer


def test_open_websockets_are_connections(server: Served) -> None:
    """They keep others out while they are open, and nobody once they are closed."""
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            for _ in range(TINY.connections):
                client = stack.enter_context(server.connect())
                client.sendall(UPGRADE % b"/ws")
                assert client.recv(100).startswith(b"HTTP/1.1 101 ")
            with server.connect() as one_more:
                assert b'"capacity"' in whole_answer(one_more)
        eventually(lambda: server.http.get("/health").status_code == 200)
