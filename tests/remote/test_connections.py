"""What a client does about all that can happen on a connection."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import uvloop

from sandbox_sdk import RemoteBackend
from sandbox_sdk.backends.remote.direct_connection import Connection, Connections, Place
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from tests.api.serving import served
from tests.remote.conftest import Connect

EMPTY = b'{"sessions":[]}'
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = EMPTY, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Script:
    """A server that has something prepared for each request, and answers as usual after that."""

    def __init__(self, *scripted: bytes | Handler) -> None:
        self._scripted = list(scripted)
        self.accepted = 0
        self.ended = asyncio.Event()
        """A connection has been closed by the client."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    await self._one(reader, writer)
        finally:
            self.ended.set()
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        act = self._scripted.pop(0) if self._scripted else answer()
        if isinstance(act, bytes):
            writer.write(act)
            await writer.drain()
        else:
            await act(reader, writer)


@contextlib.asynccontextmanager
async def listening(script: Script, host: str = "127.0.0.1") -> AsyncIterator[str]:
    server = await asyncio.start_server(script, host, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        server.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(answer())
    await writer.drain()
    raise EOFError


async def byte_by_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\ne\r\n"
    for byte in chunked + EMPTY[1:] + b"\r\n0\r\nTrailer: x\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)


USUAL: list[bytes | Handler] = [
    answer(),
    byte_by_byte,
    answer(headers="X-Folded: a\r\n b\r\n"),
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(),
    answer(headers=f"X-Long: {'x' * 60_000}\r\n"),
    answer(headers="Connection: keep-alive\r\nContent-Type: text/plain; charset=nonsense\r\n"),
]


async def test_one_connection_for_all_that_is_http(connect: Connect) -> None:
    script = Script(*USUAL)
    async with listening(script) as url, connect(url, retry_for_s=0) as remote:
        for _ in USUAL:
            assert (await remote.sessions()).sessions == []
        assert script.accepted == 1


@pytest.mark.parametrize(
    "first",
    [
        hang_up,
        answer(headers="Connection: close\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 15\r\n\r\n" + EMPTY,
    ],
    ids=["ended", "close", "HTTP/1.0"],
)
async def test_what_ends_a_connection_is_not_seen_by_the_next_call(
    first: bytes | Handler, connect: Connect
) -> None:
    script = Script(first)
    async with listening(script) as url, connect(url, retry_for_s=0) as remote:
        await remote.sessions()
        await script.ended.wait()
        assert (await remote.sessions()).sessions == []
        assert script.accepted == 2


async def test_more_than_was_asked_for_is_no_answer() -> None:
    script = Script(answer() + answer(b"{}", status="408 Request Timeout"))
    async with listening(script) as url, RemoteBackend(url, nearby=True, retry_for_s=0) as remote:
        for _ in range(2):
            assert (await remote.sessions()).sessions == []
        assert script.accepted == 2


async def test_words_on_an_unused_connection_are_no_answer(connect: Connect) -> None:
    """Such as a server that tells before it closes that nobody has called for long."""
    told, go = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer())
        await go.wait()
        writer.write(answer(b"{}", status="408 Request Timeout"))
        await writer.drain()
        told.set()

    script = Script(slow)
    async with listening(script) as url, connect(url, retry_for_s=0) as remote:
        await remote.sessions()
        go.set()
        await told.wait()
        async with connect(url) as another:  # When it has its answer, the words are here.
            await another.sessions()
        assert (await remote.sessions()).sessions == []
        assert script.accepted == 3


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/9.9 huh\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_nonsense_is_told_at_once(words: bytes, connect: Connect) -> None:
    script = Script(words)
    async with listening(script) as url, asyncio.timeout(5):
        async with connect(url, retry_for_s=0) as remote:
            with pytest.raises(errors.SandboxError):
                await remote.execute(ExecuteRequest(thread_id="t", command="true"))
            assert (await remote.sessions()).sessions == []
        assert script.accepted == 2


async def test_an_answer_before_the_request_was_sent(connect: Connect) -> None:
    error = {"error": {"code": "invalid_request", "message": "too much", "details": {}}}

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(json.dumps(error).encode(), status="413 Content Too Large"))
        while await reader.read(1 << 20):
            pass

    async with listening(Script(refuse)) as url, connect(url, retry_for_s=0) as remote:
        with pytest.raises(errors.InvalidRequest, match="too much"):
            await remote.execute(ExecuteRequest(thread_id="t", command="x" * 1_000_000))


async def test_a_cancelled_call_takes_its_connection_along(connect: Connect) -> None:
    half = asyncio.Event()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + EMPTY[:7])
        half.set()
        await reader.read()  # Until the client ends it.
        raise EOFError

    script = Script(begin)
    async with listening(script) as url, connect(url, retry_for_s=0) as remote:
        call = asyncio.create_task(remote.sessions())
        await half.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await script.ended.wait()
        assert (await remote.sessions()).sessions == []
        assert script.accepted == 2


async def test_a_call_that_waits_when_the_client_is_closed_fails(connect: Connect) -> None:
    asked = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # Until the client ends it.
        raise EOFError

    script = Script(wait)
    async with listening(script) as url, connect(url) as remote:
        call = asyncio.create_task(remote.sessions())
        await asked.wait()
        await remote.close()
        with pytest.raises(errors.RuntimeUnavailable, match="were closed before"):
            await call
        assert script.accepted == 1  # Another would be one that nobody closes.


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_is_closed_while_it_connects(turns: int) -> None:
    script = Script()
    async with listening(script) as url:
        connections = Connections(Place.of(httpx.URL(url), verify=False), httpx.Limits())
        taking = asyncio.create_task(connections.take(connect_s=5))
        for _ in range(turns):
            await asyncio.sleep(0)
        connections.close()
        (taken,) = await asyncio.gather(taking, return_exceptions=True)
        if isinstance(taken, Connection):
            assert not taken.is_usable
        else:
            assert isinstance(taken, httpx.ConnectError)
        await script.ended.wait()


async def test_an_answer_is_taken_no_faster_than_it_is_read(connect: Connect) -> None:
    piece, pieces = b"x" * 65536, 1024
    written = 0

    async def much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(piece) * pieces}\r\n\r\n".encode())
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    script = Script(answer(), much)
    async with listening(script) as url, connect(url, retry_for_s=0) as remote:
        await remote.sessions()
        async with remote.download_file(Target(thread_id="t"), "f") as download:
            size = len(await anext(download.chunks))
            for _ in range(100):  # Each lets both sides of the other connection go on.
                await remote.sessions()
            assert written < len(piece) * pieces / 2
            size += sum([len(chunk) async for chunk in download.chunks])
        assert size == len(piece) * pieces


async def test_ipv6(connect: Connect) -> None:
    async with listening(Script(), host="::1") as url, connect(url, retry_for_s=0) as remote:
        assert (await remote.sessions()).sessions == []


async def test_a_name_that_no_server_can_have(connect: Connect) -> None:
    async with connect(f"http://{'a' * 70}.invalid", retry_for_s=0) as remote:
        with pytest.raises(errors.RuntimeUnavailable, match="name is not known"):
            await remote.sessions()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_on_every_loop(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def calls(url: str) -> None:
        async with RemoteBackend(url, nearby=True) as remote:
            await remote.health()
            assert (await remote.sessions()).sessions == []

    with served() as server, asyncio.Runner(loop_factory=loop_factory) as runner:
        for host in ("127.0.0.1", "localhost"):
            runner.run(calls(f"http://{host}:{server.port}"))
