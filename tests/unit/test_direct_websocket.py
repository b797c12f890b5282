"""The SDK's end of a WebSocket, against servers that do what they like."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from websockets.utils import accept_key

from sandbox_sdk.backends.remote.diagnosis import NotHttp
from sandbox_sdk.backends.remote.direct_websocket import DirectWebSocket
from sandbox_sdk.backends.remote.websocket_opening import Refused, WebSockets

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def opener(
    serve: Serve, where: str = "127.0.0.1", *, longest: int = 1 << 16
) -> AsyncIterator[Callable[..., Awaitable[DirectWebSocket]]]:
    """Opens WebSockets of a server of which serve() answers the request. where: it listens; a path
    is a unix socket. longest: bytes of a request."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer, await reader.readuntil(b"\r\n\r\n"))
        finally:
            writer.close()

    if where.startswith("/"):
        server = await asyncio.start_unix_server(connected, where, limit=longest)
        url = f"unix://{where}"
    else:
        server = await asyncio.start_server(connected, where.strip("[]"), 0, limit=longest)
        url = f"http://{where}:{server.sockets[0].getsockname()[1]}/below/"
    sockets = WebSockets(httpx.URL(url), nearby=True)
    made: list[DirectWebSocket] = []

    async def open_one(*headers: tuple[str, str], within_s: float = PATIENCE_S) -> DirectWebSocket:
        found = await sockets.open("/ws?a=1", list(headers), within_s=within_s)
        assert isinstance(found, DirectWebSocket)
        made.append(found)
        return found

    try:
        yield open_one
    finally:
        for each in made:
            each.transport.abort()
        server.close()


def switching(request: bytes) -> bytes:
    key = re.search(rb"sec-websocket-key: (\S+)", request)
    assert key is not None
    accept = accept_key(key[1].decode()).encode()
    return (
        b"HTTP/1.1 101 Whatever\r\nSEC-WebSocket-Accept:%s \r\nupgrade: websocket\r\n\r\n" % accept
    )


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False, extensions=[])


async def answering(answer: bytes) -> Serve:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
        writer.write(answer)

    return serve


async def test_what_is_asked() -> None:
    asked = asyncio.get_running_loop().create_future()

    async def serve(_: object, writer: asyncio.StreamWriter, request: bytes) -> None:
        asked.set_result(request)
        writer.write(switching(request))

    async with opener(serve) as open_one:
        await open_one(("x-one", "ü"))
    lines = asked.result().decode().split("\r\n")
    assert lines[0] == "GET /below/ws?a=1 HTTP/1.1"
    assert re.fullmatch(r"host: 127\.0\.0\.1:\d+", lines[1])
    assert "x-one: ü" in lines


async def test_messages_that_come_with_the_answer_in_pieces_and_at_once() -> None:
    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> None:
        parts = [
            switching(request),
            frame(Opcode.TEXT, "hé".encode()[:2], fin=False),
            frame(Opcode.PING, b"between"),
            frame(Opcode.CONT, "hé".encode()[2:]),
            frame(Opcode.BINARY, b"bytes"),
        ]
        writer.write(b"".join(parts)[:-3])
        await writer.drain()
        rules = Protocol(Side.SERVER)
        while not (found := rules.events_received()):
            rules.receive_data(await reader.read(1000))
        pong = found[0]
        assert isinstance(pong, Frame)
        writer.write(parts[-1][-3:] + frame(pong.opcode, bytes(pong.data)))
        writer.write(frame(Opcode.BINARY, bytes(pong.data)))

    async with opener(serve) as open_one:
        socket = await open_one()
        assert [await socket.recv() for _ in range(3)] == ["hé", b"bytes", b"between"]
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
        with pytest.raises(ConnectionClosedError):
            await socket.send(b"x")


@pytest.mark.parametrize("close", [True, False])
async def test_what_came_before_the_end_is_read(close: bool) -> None:
    async def serve(_: object, writer: asyncio.StreamWriter, request: bytes) -> None:
        end = frame(Opcode.CLOSE, (4404).to_bytes(2, "big")) if close else b""
        writer.write(switching(request) + frame(Opcode.TEXT, b"last") + end)

    async with opener(serve) as open_one:
        socket = await open_one()
        await asyncio.wait_for(socket.wait_closed(), PATIENCE_S)
        assert await socket.recv() == "last"
        with pytest.raises(ConnectionClosedError):
            await socket.recv()


async def test_nothing_is_read_that_nobody_takes() -> None:
    """And nothing is lost once somebody does."""
    count, piece, sent = 400, bytes(64 * 1024), 0

    async def serve(_: object, writer: asyncio.StreamWriter, request: bytes) -> None:
        nonlocal sent
        writer.write(switching(request))
        for _each in range(count):
            writer.write(frame(Opcode.BINARY, piece))
            await writer.drain()
            sent += 1

    async with opener(serve) as open_one:
        socket = await open_one()
        before = -1
        while before != sent:  # Until it can send no more.
            before = sent
            await asyncio.sleep(0.2)
        assert sent < count
        for _ in range(count):
            assert await socket.recv() == piece


async def test_writing_waits_for_a_server_that_takes_nothing() -> None:
    go_on = asyncio.Event()

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> None:
        writer.write(switching(request))
        await go_on.wait()
        while await reader.read(1 << 20):
            pass

    async with opener(serve) as open_one:
        socket = await open_one()

        async def write_all() -> None:
            for _ in range(400):
                await socket.send(bytes(1 << 16))

        writing = asyncio.create_task(write_all())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(writing), 1)
        go_on.set()
        await asyncio.wait_for(writing, PATIENCE_S)


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 404 No\r\ncontent-length: 4\r\nx: y\r\n\r\nnone", 404, b"none"),
        (
            b"HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n",
            503,
            b"yes",
        ),
        (b"HTTP/1.0 502 Bad\r\n\r\nuntil the end", 502, b"until the end"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, b""),
    ],
)
async def test_refusals(answer: bytes, status: int, body: bytes) -> None:
    async with opener(await answering(answer)) as open_one:
        with pytest.raises(Refused) as refused:
            await open_one()
    assert (refused.value.answer.status_code, refused.value.answer.content) == (status, body)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Yes\r\n",
        b"HTTP/1.1 101 Yes\r\nsec-websocket-accept: wrong\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\n\r\n",
        b"HTTP/1.1 404 No\r\ncontent-length: 40\r\n\r\nless",
        b"HTTP/1.1 101 " + b"x" * 100_000,
    ],
)
async def test_answers_that_are_none(answer: bytes) -> None:
    async with opener(await answering(answer)) as open_one:
        with pytest.raises((NotHttp, httpx.ConnectError)):
            await open_one()


async def test_a_server_that_does_not_answer() -> None:
    async def serve(reader: asyncio.StreamReader, _: object, __: bytes) -> None:
        await reader.read()

    async with opener(serve) as open_one:
        with pytest.raises(httpx.ConnectTimeout):
            await open_one(within_s=0.1)


async def test_a_header_cannot_begin_another() -> None:
    async with opener(await answering(b"")) as open_one:
        with pytest.raises(httpx.LocalProtocolError):
            await open_one(("x-one", "a\r\nx-two: b"))


PLACES = pytest.mark.parametrize("where", ["127.0.0.1", "[::1]", "localhost", "/unix"])


@PLACES
@pytest.mark.parametrize("size", [1, 8 << 20], ids=["short", "longer than is taken at once"])
async def test_wherever_it_is_the_request_comes_whole(
    tmp_path: Path, where: str, size: int
) -> None:
    async def serve(_: object, writer: asyncio.StreamWriter, request: bytes) -> None:
        assert b"\r\nx-long: %s\r\n" % (b"x" * size) in request
        writer.write(switching(request) + frame(Opcode.TEXT, b"hi"))

    place = f"{tmp_path}/unix" if where == "/unix" else where
    async with opener(serve, place, longest=size + 1000) as open_one:
        assert await (await open_one(("x-long", "x" * size))).recv() == "hi"


@PLACES
async def test_nobody_is_there(tmp_path: Path, where: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    url = f"unix://{tmp_path}/none" if where == "/unix" else f"http://{where}:{port}"
    with pytest.raises(httpx.ConnectError):
        await WebSockets(httpx.URL(url), nearby=True).open("/", [], within_s=PATIENCE_S)
