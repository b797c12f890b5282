"""Whatever a channel carries, through both ends of the protocol: sizes at each constant of it, and
one byte to either side. No frame is too large, no channel gets more than was granted, and no link
is cut."""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import CommandResult, Output
from sandbox_server.runtime.warden import reconnecting_link
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_server.runtime.warden.commands import STDIN_PIECE
from sandbox_warden import file_channels, frames
from sandbox_warden.command import SUMMARIES, Command
from sandbox_warden.commands import _told
from sandbox_warden.connection import FIRST_READ, HIGH_WATER, READ_SIZE
from sandbox_warden.metadata import MAX_BYTES
from sandbox_warden.output import RESULT, STDERR, STDOUT, OutputLog
from sandbox_warden.stdin import PENDING_LIMIT, Stdin
from tests.unit.threaded_warden import ThreadedWarden, has_places, threaded_warden

CONSTANTS = {
    0, 1, frames.OFFSET.size, FIRST_READ, frames.CHUNK, file_channels._SMALL, HIGH_WATER, READ_SIZE,
    STDIN_PIECE, reconnecting_link._LARGE, frames.WINDOW // 2, frames.MAX_PAYLOAD, PENDING_LIMIT,
    frames.WINDOW - frames.OFFSET.size * (frames.WINDOW // frames.CHUNK),
    frames.WINDOW, frames.WINDOW + frames.CHUNK, 2 * frames.WINDOW, frames.MAX_RECEIVED,
}  # fmt: skip
SIZES = sorted({max(size + by, 0) for size in CONSTANTS for by in (-1, 0, 1)})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    has_places(monkeypatch, made, tmp_path / "home")
    return made


@pytest.fixture
def box(place: Path) -> Iterator[ThreadedWarden]:
    with threaded_warden() as made:
        yield made
        made.check()


@pytest.fixture
async def client(box: ThreadedWarden) -> AsyncIterator[WardenClient]:
    async with WardenClient(box) as made:
        yield made


def some(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_uploads_and_downloads(
    box: ThreadedWarden, client: WardenClient, place: Path
) -> None:
    for size in SIZES:
        data, path = some(size), str(place / f"f{size}")
        done = await client.put(path, pieces_of(data, max(size, 1)))
        assert (done.size, Path(path).read_bytes() == data) == (size, True)
        async with client.get(path) as download:
            await box.quiet()
            assert b"".join([chunk async for chunk in download]) == data


@pytest.mark.parametrize("stream", [STDOUT, STDERR, RESULT])
async def test_output(box: ThreadedWarden, client: WardenClient, stream: int) -> None:
    """Of a command, and results of a cell."""
    await client.connect()
    for size in SIZES:
        ended(box, f"c{size}", stream, some(size))
        received = b""
        async with asyncio.timeout(20), contextlib.aclosing(client.attach(f"c{size}")) as events:
            async for event in events:
                if isinstance(event, Output):
                    received += event.data
                elif not isinstance(event, CommandResult):
                    await box.quiet()
        assert received == some(size), size


def ended(box: ThreadedWarden, ident: str, stream: int, output: bytes) -> None:
    command = Command(ident, "digest", OutputLog(16 << 20), 0.0)
    command.log.append(stream, output)
    command.result = command.standing(output_bytes=len(output), cwd="/", exit_code=0)
    box.warden._commands.records.add(command)


async def test_input(box: ThreadedWarden, client: WardenClient) -> None:
    await client.connect()
    for size in SIZES:
        ours, theirs = socket.socketpair()
        command = Command(f"c{size}", "digest", OutputLog(4096), 0.0)
        command.stdin = Stdin(box.warden._loop, theirs.detach(), to_be_sent=True)
        box.warden._commands.records.add(command)
        os.set_blocking(ours.fileno(), False)
        reader, writer = await asyncio.open_connection(sock=ours)
        reading = asyncio.create_task(reader.read(-1))
        assert await client.send_stdin(f"c{size}", some(size), end=True, offset=0) == size
        assert await reading == some(size)
        writer.close()
        await writer.wait_closed()


async def test_more_input_than_a_request_has_is_refused_alone(
    box: ThreadedWarden, client: WardenClient
) -> None:
    ours, theirs = socket.socketpair()
    command = Command("c", "digest", OutputLog(4096), 0.0)
    command.stdin = Stdin(box.warden._loop, theirs.dup().detach(), to_be_sent=True)
    box.warden._commands.records.add(command)
    link = await client.get_link()
    async with link.request(frames.STDIN, {"command_id": "c"}) as channel:
        for data in (bytes(frames.WINDOW), b"x"):
            for start in range(0, len(data), frames.CHUNK):
                await channel.send(frames.DATA, data[start : start + frames.CHUNK])
        kind, _, payload = await channel.receive(silence_s=20)
    assert (kind, b"invalid_request" in payload) == (frames.ERROR, True)
    await client.ping()
    command.stdin.close()
    ours.close()
    theirs.close()


async def test_tunnels(box: ThreadedWarden, client: WardenClient, place: Path) -> None:
    """Both ways, over one that gives back all it gets."""
    path = str(place / "s")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(data)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(echo, path):
        for size in SIZES:
            async with asyncio.timeout(20), client.dial(path=path) as tunnel:
                await tunnel.write(some(size))
                await tunnel.end()
                await box.quiet()
                received = b""
                while data := await tunnel.read():
                    received += data
            assert received == some(size)


def plain(number: int, length: int) -> str:
    return f"{number:04}".ljust(length, "x")


def escaped(number: int, length: int) -> str:
    return f"{number:04}".ljust(length, "\x01")


def not_text(number: int, length: int) -> str:
    return f"{number:04}".ljust(length, "\udcff")


@pytest.mark.parametrize("name", [plain, escaped, not_text])
async def test_listings_of_long_names(
    box: ThreadedWarden, client: WardenClient, place: Path, name: Callable[[int, int], str]
) -> None:
    below = place
    while len(os.fsencode(below)) + 2 * 251 < 4096:
        below /= name(0, 250)
    # Longer than a path may be in one call, where it is made step by step.
    fd = os.open(place, os.O_RDONLY)
    for step in below.relative_to(place).parts:
        os.mkdir(step, dir_fd=fd)
        inner = os.open(step, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    for number in range(1000):
        os.symlink(name(number, 4095), name(number, 250), dir_fd=fd)
    os.close(fd)
    found = 0
    async with (
        asyncio.timeout(50),
        contextlib.aclosing(client.batches(str(below), limit=1000)) as batches,
    ):
        await box.quiet()
        async for batch in batches:
            found += len(batch) if isinstance(batch, list) else 0
    assert found > 100  # As many as fit into 8 MiB.


async def test_an_answer_that_no_frame_has_room_for(
    box: ThreadedWarden, client: WardenClient
) -> None:
    """It is refused on its channel, whatever makes it."""

    class Source(file_channels.Taking):
        def _finish(self) -> dict[str, str]:
            return {"long": "x" * frames.MAX_PAYLOAD}

        def pull(self) -> bytes | None:
            return self.answer(self._finish())

    handlers = box.warden._requests.handlers
    handlers[frames.STAT] = lambda connection, channel, _: connection.add(channel, Source())
    handlers[frames.MKDIR] = lambda connection, channel, _: connection.reply(
        channel, {"long": "x" * frames.MAX_PAYLOAD}
    )
    for call in (client.stat("f"), client.mkdir("f")):
        with pytest.raises(errors.SandboxError, match="does not fit into a frame"):
            await call
    await client.ping()


async def test_a_frame_that_is_too_long_is_not_sent(client: WardenClient) -> None:
    link = await client.get_link()
    async with link.request(frames.PUT, {"path": "f", "limit": 1}) as channel:
        with pytest.raises(frames.TooLong):
            await channel.send(frames.DATA, bytes(frames.MAX_PAYLOAD + 1))
    await client.ping()


@pytest.mark.parametrize("fill", ["x", '"', "\n", "\x01", "\u6f22"])
async def test_what_runs_is_told_however_long_it_is(
    box: ThreadedWarden, client: WardenClient, fill: str
) -> None:
    """As many commands as an answer has, each with as much to tell as there may be."""
    await client.connect()
    for number in range(SUMMARIES):
        command = Command(f"{number:032}", "digest", OutputLog(4096), 0.0)
        command.key = fill * 196 + f"{number:04}"
        cwd = "/" + fill * (999 // len(fill.encode()))
        env = {"A": fill * (490 // len(fill.encode()))}
        command.told = _told(fill * 5000, cwd, env)
        box.warden._commands.records.add(command)
    await client.set_state({"x": "y" * (64 * 1024 - 10)})
    told = (await client.state()).commands
    assert len(told) == SUMMARIES
    assert told[0].text


async def test_metadata_of_many_files(
    box: ThreadedWarden, client: WardenClient, place: Path
) -> None:
    room = MAX_BYTES - 300
    try:
        os.setxattr(place, "user.e2b.a", b"\x01" * room)
    except OSError:
        pytest.skip("the file system of /tmp has no extended attributes of this size")
    for number in range(300):
        (place / f"f{number}").touch()
        os.setxattr(place / f"f{number}", "user.e2b.a", b"\x01" * room)
    async with contextlib.aclosing(client.batches(str(place), limit=1000)) as batches:
        await box.quiet()
        assert sum([len(batch) async for batch in batches if isinstance(batch, list)]) == 300
