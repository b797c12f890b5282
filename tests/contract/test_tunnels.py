"""Connections to and from sockets of a box, on every runtime."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_warden.tunnels import MAX_TUNNELS

SERVER = r"""
import socket, sys, threading
def serve(one):
    with one:
        kind = one.recv(1)
        if kind == b"e":            # echo
            while data := one.recv(65536):
                one.sendall(data)
        elif kind == b"c":          # count, and tell after the end
            size = 0
            while data := one.recv(65536):
                size += len(data)
            one.sendall(b"%d" % size)
        elif kind == b"s":          # send
            left = 30_000_000
            while left:
                left -= one.send(bytes(min(left, 65536)))
        elif kind == b"n":          # neither reads nor sends
            threading.Event().wait()
        elif kind == b"b":          # byte by byte
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(20_000):
                one.send(b"x")
        elif kind == b"r":          # reset
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
if sys.argv[1].startswith("/"):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
else:
    family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((sys.argv[1], 8080))
listener.listen(128)
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""


@pytest.fixture
async def serving(warden: WardenClient) -> WardenClient:
    await start(warden, "127.0.0.1")
    return warden


async def start(warden: WardenClient, where: str) -> None:
    await warden.run(f"cat > /tmp/server.py <<'END'\n{SERVER}\nEND")
    await warden.start(f"exec python3 /tmp/server.py {where} > /tmp/log 2>&1", timeout_s=None)
    looked = await warden.run(
        "for n in $(seq 100); do grep -q listening /tmp/log && exit; sleep 0.05; done; exit 1"
    )
    assert looked.exit_code == 0, (await warden.run("cat /tmp/log")).output


async def until_listening(dial: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(errors.NotListening):
                await dial()
                return
            await asyncio.sleep(0.05)


async def read_all(tunnel: ByteChannel) -> bytes:
    pieces = []
    while data := await tunnel.read():
        pieces.append(data)
    return b"".join(pieces)


async def echoed(tunnel: ByteChannel, data: bytes) -> bytes:
    """Written and read at the same time."""
    reading = asyncio.create_task(read_all(tunnel))
    await tunnel.write(b"e" + data)
    await tunnel.end()
    return await reading


@pytest.mark.kernel
async def test_bytes_go_both_ways(serving: WardenClient) -> None:
    data = os.urandom(5_000_000)
    async with serving.dial(port=8080) as tunnel:
        assert await echoed(tunnel, data) == data
    async with serving.dial(port=8080) as tunnel:
        await tunnel.write(b"s")
        assert (
            hashlib.sha256(await read_all(tunnel)).digest()
            == hashlib.sha256(bytes(30_000_000)).digest()
        )


async def test_each_direction_has_its_own_end(serving: WardenClient) -> None:
    async with serving.dial(port=8080) as tunnel:
        await tunnel.write(b"c" + bytes(3_000_000))
        await tunnel.end()
        assert await read_all(tunnel) == b"3000000"


@pytest.mark.kernel
async def test_nobody_listens(warden: WardenClient) -> None:
    with pytest.raises(errors.NotListening):
        async with warden.dial(port=8081):
            pass
    with pytest.raises(errors.SandboxError):
        async with warden.dial(path="/workspace/nothing.sock"):
            pass
    for path in ("nothing.sock", "\0abstract", ""):
        with pytest.raises(errors.SandboxError):
            async with warden.dial(path=path):
                pass
    for port in (0, 65536, -1):
        with pytest.raises(errors.InvalidRequest):
            async with warden.dial(port=port):
                pass
    assert (await warden.run("echo on")).output == "on\n"


@pytest.mark.parametrize("where", ["::1", "/workspace/server.sock"])
async def test_other_addresses(warden: WardenClient, where: str) -> None:
    if where == "::1":
        probe = "python3 -c 'import socket; socket.create_server((\"::1\", 0), family=10)'"
        if (await warden.run(probe)).exit_code:
            pytest.skip("IPv6: boxes have none here")
    await start(warden, where)
    options = {"path": where} if where.startswith("/") else {"port": 8080}
    async with warden.dial(**options) as tunnel:
        assert await echoed(tunnel, b"hello") == b"hello"


async def test_one_that_stalls_holds_up_nobody(serving: WardenClient) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stalled = await stack.enter_async_context(serving.dial(port=8080))
        await stalled.write(b"n")
        full = asyncio.create_task(stalled.write(bytes(20_000_000)))
        unread = await stack.enter_async_context(serving.dial(port=8080))
        await unread.write(b"s")

        async def one(number: int) -> None:
            data = os.urandom(200_000)
            async with serving.dial(port=8080) as tunnel:
                assert await echoed(tunnel, data) == data

        await asyncio.gather(*map(one, range(50)))
        assert (await serving.run("echo on")).output == "on\n"
        assert not full.done()
        full.cancel()
        assert len(await read_all(unread)) == 30_000_000


async def test_a_connection_that_is_reset(serving: WardenClient) -> None:
    async with serving.dial(port=8080) as tunnel:
        await tunnel.write(b"r")
        with contextlib.suppress(errors.RuntimeUnavailable):
            assert await read_all(tunnel) == b""
    assert (await serving.run("echo on")).output == "on\n"


async def write_on(tunnel: ByteChannel) -> None:
    async with asyncio.timeout(30):
        while True:
            await tunnel.write(bytes(100_000))


async def test_who_only_writes_is_told_that_nobody_reads(serving: WardenClient) -> None:
    async with serving.dial(port=8080) as tunnel:
        await tunnel.write(b"r")
        with pytest.raises(errors.RuntimeUnavailable):
            await write_on(tunnel)


async def test_bytes_one_by_one_wait_for_a_slow_reader(serving: WardenClient) -> None:
    async with serving.dial(port=8080) as tunnel:
        await tunnel.write(b"b")
        async with serving.dial(port=8080) as other:
            assert await echoed(other, b"meanwhile") == b"meanwhile"
        await serving.run("sleep 1")
        assert await read_all(tunnel) == b"x" * 20_000


async def test_a_process_of_the_box_connects(warden: WardenClient) -> None:
    async def answer() -> None:
        async with warden.accept(3128) as tunnel:
            said = await read_all(tunnel)
            await tunnel.write(said.upper())
            await tunnel.end()

    answers = [asyncio.create_task(answer()) for _ in range(3)]
    await warden.ping()
    client = (
        'python3 -c \'import socket, sys; s = socket.create_connection(("127.0.0.1", 3128));'
        " s.sendall(sys.argv[1].encode()); s.shutdown(1); print(s.recv(99).decode())' {}"
    )
    for word in ("one", "two", "three"):
        assert (await warden.run(client.format(word))).output == f"{word.upper()}\n"
    await asyncio.gather(*answers)


async def test_a_port_that_is_taken(serving: WardenClient) -> None:
    with pytest.raises(errors.Conflict):
        async with serving.accept(8080):
            pass


async def test_tunnels_are_bounded(serving: WardenClient) -> None:
    queue = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 9090)); s.listen(400)"
    await serving.start(f'python3 -c "{queue}; time.sleep(999)"', timeout_s=None)
    async with contextlib.AsyncExitStack() as stack:

        async def dial() -> None:
            await stack.enter_async_context(serving.dial(port=9090))

        await until_listening(dial)
        for _ in range(MAX_TUNNELS - 1):
            await dial()
        with pytest.raises(errors.Capacity):
            await dial()
        assert (await serving.run("echo on")).output == "on\n"
    async with serving.dial(port=8080) as tunnel:
        assert await echoed(tunnel, b"again") == b"again"
