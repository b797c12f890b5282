"""Connections into a sandbox, over every way to a Sandboxes."""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as redis
from redis.asyncio.client import PubSub

from sandbox_sdk import AsyncSandboxClient
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.models import ConnectRequest, ExecuteRequest, Target, checked
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .test_sandboxes import run, thread
from .test_tunnels import SERVER, echoed, read_all

pytestmark = pytest.mark.bash


async def listening(sandboxes: Sandboxes, name: str = "t", where: str = "127.0.0.1") -> None:
    """Have the server of test_tunnels listen in the sandbox of a thread."""
    await run(sandboxes, name, f"cat > /tmp/server.py <<'END'\n{SERVER}\nEND")
    command = f"exec python3 /tmp/server.py {where} > /tmp/log 2>&1"
    await sandboxes.execute(ExecuteRequest(thread_id=name, command=command, background=True))
    looking = "for n in $(seq 200); do grep -q listening /tmp/log && exit; sleep 0.05; done; exit 1"
    assert (await run(sandboxes, name, looking)).exit_code == 0


def to(port: int = 8080, name: str = "t") -> ConnectRequest:
    return ConnectRequest(thread_id=name, port=port)


@pytest.mark.seam
async def test_bytes_go_both_ways(sandboxes: Sandboxes) -> None:
    await listening(sandboxes)
    data = os.urandom(3_000_000)
    async with sandboxes.connect(to()) as channel:
        assert await echoed(channel, data) == data
    async with sandboxes.connect(to()) as channel:
        await channel.write(b"c" + bytes(1_000_000))
        await channel.end()
        assert await read_all(channel) == b"1000000"


async def test_a_unix_socket(sandboxes: Sandboxes) -> None:
    await listening(sandboxes, where="/workspace/app.sock")
    request = ConnectRequest(thread_id="t", path="/workspace/app.sock")
    async with sandboxes.connect(request) as channel:
        assert await echoed(channel, b"hello") == b"hello"


async def test_what_cannot_be_connected_to(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.SessionNotFound):
        async with sandboxes.connect(ConnectRequest(session_id="nope", port=8080)):
            pass
    await run(sandboxes, "t", "true")
    with pytest.raises(errors.NotListening, match="at port 8081"):
        async with sandboxes.connect(to(8081)):
            pass
    with pytest.raises(errors.SandboxError, match=r"nothing\.sock"):
        async with sandboxes.connect(ConnectRequest(thread_id="t", path="/tmp/nothing.sock")):
            pass
    with pytest.raises(errors.InvalidRequest):
        async with sandboxes.connect(ConnectRequest(thread_id="t", path="relative.sock")):
            pass
    assert (await run(sandboxes, "t", "echo on")).output == "on\n"


@pytest.mark.parametrize("fields", [{}, {"port": 1, "path": "/s"}, {"port": 0}, {"port": 65536}])
def test_a_port_or_a_path(fields: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidRequest):
        checked(ConnectRequest, thread_id="t", **fields)


@pytest.mark.seam
async def test_the_session_ends(sandboxes: Sandboxes) -> None:
    await listening(sandboxes)
    async with sandboxes.connect(to()) as channel:
        await channel.write(b"n")
        await sandboxes.cleanup(Target(thread_id="t"))
        with contextlib.suppress(errors.SandboxError):
            async with asyncio.timeout(30):
                assert await channel.read() == b""


@pytest.mark.one_way
async def test_one_that_stalls_holds_up_nobody(sandboxes: Sandboxes) -> None:
    await listening(sandboxes)
    async with sandboxes.connect(to()) as stalled:
        await stalled.write(b"n")
        full = asyncio.create_task(stalled.write(bytes(50_000_000)))

        async def one() -> None:
            data = os.urandom(300_000)
            async with sandboxes.connect(to()) as channel:
                assert await echoed(channel, data) == data

        await asyncio.gather(*(one() for _ in range(50)))
        assert not full.done()
        full.cancel()


@pytest.mark.one_way
async def test_100_megabytes(sandboxes: Sandboxes) -> None:
    await listening(sandboxes)
    block = os.urandom(1 << 20)
    wanted, found = hashlib.sha256(), hashlib.sha256()

    async def send(channel: ByteChannel) -> None:
        await channel.write(b"e")
        for _ in range(100):
            wanted.update(block)
            await channel.write(block)
        await channel.end()

    async with sandboxes.connect(to()) as channel, asyncio.TaskGroup() as group:
        group.create_task(send(channel))
        while data := await channel.read():
            found.update(data)
    assert found.digest() == wanted.digest()


@pytest.mark.one_way
async def test_being_open_is_no_use_of_a_session(sandboxes: Sandboxes) -> None:
    await listening(sandboxes)  # A command that runs is a use: let a daemon take its place.
    await run(sandboxes, "t", "pkill -f server.py; (python3 /tmp/server.py 127.0.0.1 > /tmp/l2 &)")
    await run(sandboxes, "t", "until grep -q listening /tmp/l2; do sleep 0.05; done")
    async with sandboxes.connect(to()) as channel:
        await channel.write(b"e")
        async with asyncio.timeout(60):
            while (await sandboxes.session(thread("t"))).idle_s < 1:
                await asyncio.sleep(0.1)
        await channel.write(b"x")
        assert await channel.read() == b"x"
        assert (await sandboxes.session(thread("t"))).idle_s < 1


# Forwarding


@contextlib.asynccontextmanager
async def dialled(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.one_way
async def test_a_port_of_this_machine_leads_into_a_sandbox(
    sandboxes: Sandboxes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        AsyncSandboxClient("t", backend=sandboxes) as sandbox,
        sandbox.forward(8080) as forward,
    ):
        await run(sandboxes, "t", "true")
        async with dialled(forward.port) as (reader, _):  # Nobody listens yet.
            assert await _rest(reader) == b""
        assert "nobody listens at port 8080" in caplog.text
        await listening(sandboxes)
        async with dialled(forward.port) as (reader, writer):
            data = os.urandom(2_000_000)
            writer.write(b"c" + data)
            writer.write_eof()
            assert await _rest(reader) == b"2000000"
        async with dialled(forward.port) as (reader, writer):
            writer.write(b"s")
            assert len(await _rest(reader)) == 30_000_000
        async with dialled(forward.port) as (open_reader, writer):
            writer.write(b"e1")
            assert await open_reader.read(1) == b"1"
            kept = forward.port
            await forward.close()
            assert await _rest(open_reader) == b""
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", kept)


@pytest.mark.one_way
async def test_a_database_in_a_sandbox(sandboxes: Sandboxes) -> None:
    if (await run(sandboxes, "t", "command -v redis-server")).exit_code:
        pytest.skip("Redis: boxes have none here")
    serve = "exec redis-server --port 6379 --save '' --dir /tmp"
    await sandboxes.execute(ExecuteRequest(thread_id="t", command=serve, background=True))
    looking = "until (echo > /dev/tcp/127.0.0.1/6379) 2> /dev/null; do sleep 0.05; done"
    await run(sandboxes, "t", looking)
    async with (
        AsyncSandboxClient("t", backend=sandboxes) as sandbox,
        sandbox.forward(6379) as forward,
        redis.Redis(host=forward.host, port=forward.port) as database,
    ):
        names = [f"key-{number}" for number in range(2000)]
        async with database.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.set(name, name * 100)
            await pipe.execute()
        assert await database.mget(names) == [(name * 100).encode() for name in names]
        async with database.pubsub() as listening:
            await listening.subscribe("news")
            await database.publish("news", "hello")
            told = [message async for message in _messages(listening)]
        assert told == [b"hello"]


async def _messages(listening: PubSub) -> AsyncIterator[bytes]:
    """The first one."""
    async with asyncio.timeout(30):
        async for message in listening.listen():
            if message["type"] == "message":
                yield message["data"]
                return


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """All that comes, also before a reset."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            pieces.append(data)
    return b"".join(pieces)


@pytest.mark.one_way
async def test_a_port_that_is_taken(sandboxes: Sandboxes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with AsyncSandboxClient("t", backend=sandboxes) as sandbox:
            with pytest.raises(OSError, match="in use"):
                async with sandbox.forward(8080, local_port=port):
                    pass
