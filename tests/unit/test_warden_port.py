"""The warden's TCP port: who gets a stream, and what strangers can do to those who have one."""

import asyncio
import contextlib
import secrets
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop

from sandbox_server.runtime.kubernetes import tcp
from sandbox_server.runtime.kubernetes.tcp import Identity, NotReached, NotTheWarden, open_tcp
from sandbox_server.runtime.streams import SocketStream
from sandbox_warden import port as port_module
from sandbox_warden.connection import Connection, Wire
from sandbox_warden.frames import DATA, Decoder, encode
from sandbox_warden.loop import READ, Loop
from sandbox_warden.pid1 import bound
from sandbox_warden.port import MAGIC, NONCE_SIZE, Port, proof
from tests.waiting import PATIENCE_S

KEY = bytes(range(32))
HOST = "127.0.0.1"


class Echo:
    """A port whose streams send every frame back, in a thread with the warden's loop."""

    def __init__(self) -> None:
        self.streams = 0
        self._loop = Loop()
        self._socket = bound(0)
        self._port = Port(self._loop, self._socket, self._serve)
        self.number = self._socket.getsockname()[1]
        self._stop_at, self._stop = socket.socketpair()
        self._stopped = False
        self._connections: list[Connection] = []
        self._thread = threading.Thread(target=self._run)

    def admit(self, key: bytes, identity: Identity) -> None:
        """Before it runs: the loop is of one thread."""
        self._port.admit(key, identity.certificate)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._loop.watch(self._stop_at.fileno(), READ, lambda _events: self._end())
        self._thread.start()
        try:
            yield
        finally:
            self._stop.send(b"x")
            self._thread.join()

    def _end(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped:
            self._loop.turn()
        for stranger in list(self._port._strangers):
            stranger.end()
        for connection in list(self._connections):
            connection.close()
        for each in (self._socket, self._stop_at, self._stop):
            each.close()

    def _serve(self, wire: Wire) -> None:
        self.streams += 1
        made = Connection(self._loop, wire, self._frame, self._connections.remove)
        self._connections.append(made)

    def _frame(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        connection.send(encode(kind, channel, payload))


@pytest.fixture(scope="module")
def identity() -> Identity:
    return Identity.make()


@pytest.fixture
async def echo(identity: Identity) -> AsyncIterator[Echo]:
    made = Echo()
    made.admit(KEY, identity)
    with made.running():
        yield made


async def ask(stream: SocketStream, payload: bytes) -> bytes:
    decoder = Decoder()
    async with asyncio.timeout(PATIENCE_S):
        await stream.write(encode(DATA, 1, payload))
        while data := await stream.read():
            for _kind, _channel, answer in decoder.feed(data):
                return answer
    raise AssertionError("the stream ended")


async def refused(reader: asyncio.StreamReader) -> bool:
    """Whether the warden closes the connection, saying nothing more."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_server_with_a_key_gets_a_stream(echo: Echo, identity: Identity) -> None:
    stream = await open_tcp(HOST, echo.number, KEY, identity)
    assert await ask(stream, b"hello") == b"hello"
    large = secrets.token_bytes(1 << 20)
    for _ in range(8):
        assert await ask(stream, large) == large
    await stream.close()


def test_in_the_event_loop_of_servers(identity: Identity) -> None:
    """Which is another one than that of tests."""
    echo = Echo()
    echo.admit(KEY, identity)
    with echo.running():
        uvloop.run(test_a_server_with_a_key_gets_a_stream(echo, identity))


async def test_a_reader_that_stops_loses_nothing(echo: Echo, identity: Identity) -> None:
    """More than both kernels and both ends hold: the warden waits in the middle of a frame."""
    stream = await open_tcp(HOST, echo.number, KEY, identity)
    payload, count = secrets.token_bytes(512 << 10), 40
    sending = asyncio.create_task(send_all(stream, encode(DATA, 1, payload), count))
    await asyncio.sleep(0.3)
    decoder, found = Decoder(), 0
    async with asyncio.timeout(PATIENCE_S):
        while found < count and (data := await stream.read()):
            for _kind, _channel, answer in decoder.feed(data):
                assert answer == payload
                found += 1
    await sending
    assert found == count
    await stream.close()


async def send_all(stream: SocketStream, frame: bytes, count: int) -> None:
    for _ in range(count):
        await stream.write(frame)


async def test_another_key(echo: Echo, identity: Identity) -> None:
    with pytest.raises(NotTheWarden):
        await open_tcp(HOST, echo.number, secrets.token_bytes(32), identity)
    assert echo.streams == 0


async def test_another_certificate(echo: Echo) -> None:
    """Who has the key alone, such as from a warden's memory, is no server."""
    with pytest.raises(NotTheWarden):
        await open_tcp(HOST, echo.number, KEY, Identity.make())
    assert echo.streams == 0


async def test_nobody_listens(identity: Identity) -> None:
    with bound(0) as unused, pytest.raises(NotReached):
        await open_tcp(HOST, unused.getsockname()[1], KEY, identity)


async def test_something_else_listens(identity: Identity) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        number = server.sockets[0].getsockname()[1]
        with pytest.raises(NotTheWarden, match="no warden"):
            await open_tcp(HOST, number, KEY, identity)


async def test_somebody_who_passes_for_the_warden(identity: Identity) -> None:
    """In another pod with the address of one that is gone: it can do all but show the key."""

    def pretend() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock, _ = listening.accept()
        with sock:
            sock.sendall(MAGIC + bytes(NONCE_SIZE))
            sock.recv(64, socket.MSG_WAITALL)
            with contextlib.suppress(OSError), context.wrap_socket(sock) as over_tls:
                over_tls.sendall(bytes(32))
                over_tls.recv(1)

    with socket.create_server((HOST, 0)) as listening:
        pretending = asyncio.create_task(asyncio.to_thread(pretend))
        with pytest.raises(NotTheWarden, match="does not know the key"):
            await open_tcp(HOST, listening.getsockname()[1], KEY, identity)
        await pretending


async def test_a_handshake_that_was_recorded(echo: Echo, identity: Identity) -> None:
    """What a server has sent to one connection opens no other."""
    recorded = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, echo.number)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                if source is reader:
                    recorded.extend(data)
                target.write(data)
            target.close()

        await asyncio.gather(copy(reader, back), copy(there, writer))

    async with await asyncio.start_server(serve, HOST, 0) as between:
        number = between.sockets[0].getsockname()[1]
        stream = await open_tcp(HOST, number, KEY, identity)
        assert await ask(stream, b"seen by nobody else") == b"seen by nobody else"
        assert b"seen by nobody else" not in recorded
        await stream.close()
    reader, writer = await asyncio.open_connection(HOST, echo.number)
    await reader.readexactly(len(MAGIC) + NONCE_SIZE)
    writer.write(bytes(recorded))
    assert await refused(reader)
    writer.close()
    assert echo.streams == 1


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 8, b"\x00" * 64, b"\xff" * 100000])
async def test_garbage(echo: Echo, identity: Identity, garbage: bytes) -> None:
    stream = await open_tcp(HOST, echo.number, KEY, identity)
    reader, writer = await asyncio.open_connection(HOST, echo.number)
    await reader.readexactly(len(MAGIC) + NONCE_SIZE)
    writer.write(garbage)
    assert await refused(reader)
    writer.close()
    assert await ask(stream, b"on it goes") == b"on it goes"
    await stream.close()


async def test_garbage_after_the_key(echo: Echo, identity: Identity) -> None:
    """Of who has the key, TLS is the next thing."""
    reader, writer = await asyncio.open_connection(HOST, echo.number)
    hello = await reader.readexactly(len(MAGIC) + NONCE_SIZE)
    nonce = bytes(NONCE_SIZE)
    writer.write(nonce + proof(KEY, b"server", hello[len(MAGIC) :], nonce) + b"\x16\x03\x03" * 100)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()  # Its ClientHello, an alert, and the end.
    writer.close()
    stream = await open_tcp(HOST, echo.number, KEY, identity)
    assert await ask(stream, b"x") == b"x"
    await stream.close()


async def test_a_thousand_strangers(echo: Echo, identity: Identity) -> None:
    stream = await open_tcp(HOST, echo.number, KEY, identity)
    strangers = []
    for number in range(1000):
        strangers.append(await asyncio.open_connection(HOST, echo.number))
        if number % 100 == 0:
            assert await ask(stream, b"on it goes") == b"on it goes"
    second = await open_tcp(HOST, echo.number, KEY, identity)
    assert await ask(second, b"too") == b"too"
    assert len(echo._port._strangers) <= 32
    for _reader, writer in strangers:
        writer.transport.abort()
    await stream.close()
    await second.close()


async def test_who_sends_slowly_is_not_waited_for(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "_HANDSHAKE_S", 0.2)
    echo = Echo()
    echo.admit(KEY, identity)
    with echo.running():
        reader, writer = await asyncio.open_connection(HOST, echo.number)
        writer.write(b"x")
        await reader.readexactly(len(MAGIC) + NONCE_SIZE)
        assert await refused(reader)
        writer.close()


async def test_a_few_servers_have_keys(identity: Identity) -> None:
    """The oldest go: each exec may bring one."""
    echo, keys = Echo(), [secrets.token_bytes(32) for _ in range(5)]
    for key in keys:
        echo.admit(key, identity)
    with echo.running():
        for key in keys[1:]:
            stream = await open_tcp(HOST, echo.number, key, identity)
            assert await ask(stream, b"x") == b"x"
            await stream.close()
        with pytest.raises(NotTheWarden):
            await open_tcp(HOST, echo.number, keys[0], identity)


async def test_a_pod_that_swallows_everything(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_HANDSHAKE_S", 0.2)
    with socket.create_server((HOST, 0)) as silent, pytest.raises(NotTheWarden, match="in time"):
        await open_tcp(HOST, silent.getsockname()[1], KEY, identity)
