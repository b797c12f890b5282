"""What goes in and out of a box, on every runtime: sizes at the constants of the protocol, and one
byte to either side."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_server.runtime.agent import CommandResult, Output
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_warden import frames, tree

from .test_trees import PLACES, Another, another, copied, digest, packed

__all__ = ["another"]

AROUND = (frames.CHUNK, tree.PIECE, frames.WINDOW // 2, frames.WINDOW, tree.SEGMENT)
SIZES = [0, 1, *(size + by for size in AROUND for by in (-1, 0, 1)), 900_000]
TREE = r"""
import os, random, sys
dice = random.Random(int(sys.argv[1]))
sizes = [int(size) for size in sys.argv[2:]]
folders = [b"/workspace", b"/tmp", os.fsencode(os.path.expanduser("~"))]
odd = [b"", b"\n", b"\xff\xfe", b" ' \"", "\u6f22".encode(), b"x" * 250]
room = 40 << 20
for number in range(120):
    path = os.path.join(dice.choice(folders), (b"%d" % number + dice.choice(odd))[:255])
    what = dice.random()
    if len(path) > 3000:
        continue
    if what < 0.1:
        os.mkdir(path)
        folders.append(path)
        continue
    with open(path, "wb") as file:
        if what < 0.2:
            file.seek(dice.choice(sizes))
        size = min(dice.choice(sizes) if what < 0.4 else dice.randrange(2000), room)
        room -= size
        file.write(os.urandom(size))
for number in range(600):
    with open("/workspace/small%d" % number, "w") as file:
        file.write(str(number))
"""


def some(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_trees_of_files_of_all_sizes(warden: WardenClient, another: Another) -> None:
    for each in SIZES:
        await warden.put(f"f{each}", once(some(each)))
    sizes = " ".join(map(str, SIZES))
    made = await warden.run(f"python3 - 20261119 {sizes} <<'E'\n{TREE}\nE", timeout_s=60)
    assert (made.exit_code, made.output) == (0, "")
    before = [await digest(warden, place) for place in PLACES]
    link = warden._link
    segments, about, _ = await packed(warden)
    assert (about.left_out, warden._link is link) == ([], True)
    copy = await copied(another, segments)
    assert [await digest(copy, place) for place in PLACES] == before


async def test_files_go_in_and_out(warden: WardenClient) -> None:
    for size in SIZES:
        await warden.put("f", once(some(size)))
        async with warden.get("f", digest=True) as download:
            assert b"".join([chunk async for chunk in download]) == some(size)


async def test_input_and_output(warden: WardenClient) -> None:
    for size in SIZES:
        stream = warden.stream("cat", stdin=some(size), output_limit=16 << 20)
        async with contextlib.aclosing(stream) as events:
            seen = [event async for event in events]
        assert b"".join([each.data for each in seen if isinstance(each, Output)]) == some(size)
        assert isinstance(seen[-1], CommandResult)


ECHO = r"""
import socket
listener = socket.create_server(("127.0.0.1", 8080))
print("listening", flush=True)
while True:
    one = listener.accept()[0]
    data = bytearray()
    while piece := one.recv(65536):
        data += piece
    one.sendall(data)
    one.close()
"""


async def test_tunnels(warden: WardenClient) -> None:
    async with contextlib.aclosing(
        warden.stream(f"exec python3 - <<'E'\n{ECHO}\nE", timeout_s=None)
    ) as events:
        async for event in events:
            if isinstance(event, Output):
                break
        for size in SIZES:
            async with asyncio.timeout(30), warden.dial(port=8080) as tunnel:
                await tunnel.write(some(size))
                await tunnel.end()
                assert await read_all(tunnel) == some(size)


async def read_all(tunnel: ByteChannel) -> bytes:
    pieces = []
    while data := await tunnel.read():
        pieces.append(data)
    return b"".join(pieces)
