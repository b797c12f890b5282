"""Trees of files through both ends of the protocol, packed and unpacked: sizes at each constant of
it, and one byte to either side, alone and many together."""

import os
import random
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox_server.runtime import agent
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_warden import frames, tree
from sandbox_warden.connection import HIGH_WATER, READ_SIZE
from sandbox_warden.state import STATE_LIMIT, ShellState
from sandbox_warden.tree_channels import Packing
from sandbox_warden.walk import MAX_DEPTH
from tests.unit.threaded_warden import ThreadedWarden, has_places, threaded_warden

CONSTANTS = sorted(
    {
        0, 1, 4096, frames.CHUNK, HIGH_WATER, READ_SIZE, tree.PIECE, tree._LARGE, tree.SEGMENT,
        frames.MAX_PAYLOAD, frames.WINDOW, frames.WINDOW // 2, frames.WINDOW + tree.PIECE,
        frames.MAX_PAYLOAD - tree.PIECE, frames.MAX_PAYLOAD - frames.CHUNK, 2 * frames.MAX_PAYLOAD,
    }
)  # fmt: skip
SIZES = sorted({max(size + by, 0) for size in CONSTANTS for by in (-1, 0, 1)})
SEED = 20261119
ROUNDS = 4


class Place:
    """A folder that a warden packs, and unpacks into again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before = folder.with_name("before")
        folder.mkdir()

    def put_away(self) -> None:
        self.folder.rename(self.before)
        self.folder.mkdir()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path / "place")
    has_places(monkeypatch, made.folder, tmp_path / "home")
    return made


@pytest.fixture
def box(place: Place) -> Iterator[ThreadedWarden]:
    with threaded_warden() as made:
        yield made


async def packed(box: ThreadedWarden, place: Place) -> tuple[list[bytes], agent.TreeAbout]:
    async with WardenClient(box) as client:
        async with client.pack([str(place.folder)], pause_s=60) as tree_:
            await box.quiet()  # A reader that has something else to do.
            segments = [segment async for segment in tree_]
        assert tree_.about is not None
        assert len(box.streams) == 1
        return segments, tree_.about


async def each(segments: list[bytes]) -> AsyncIterator[bytes]:
    for segment in segments:
        yield segment


async def come_back(box: ThreadedWarden, place: Place) -> agent.TreeAbout:
    """Pack the place, and find all of it in what is unpacked."""
    segments, about = await packed(box, place)
    box.check()
    assert about.left_out == []
    place.put_away()
    async with WardenClient(box) as client:
        await client.unpack(each(segments))
    box.check()
    assert seen(place.folder) == seen(place.before)
    return about


def seen(folder: Path) -> dict[bytes, object]:
    """What is in a folder, by path."""
    root = os.fsencode(folder)
    found: dict[bytes, object] = {}
    numbers: dict[tuple[int, int], bytes] = {}
    for at, folders, files, fd in os.fwalk(root):
        for name in sorted([*folders, *files]):
            path = os.path.join(at, name)[len(root) :]
            info = os.lstat(name, dir_fd=fd)
            about: list[object] = [info.st_mode, info.st_mtime_ns]
            if stat.S_ISREG(info.st_mode):
                with open(os.open(name, os.O_RDONLY, dir_fd=fd), "rb") as file:
                    about += [
                        hash(file.read()),
                        numbers.setdefault((info.st_dev, info.st_ino), path),
                    ]
            elif stat.S_ISLNK(info.st_mode):
                about.append(os.readlink(name, dir_fd=fd))
            found[path] = about
    return found


def write(path: Path, size: int) -> None:
    path.write_bytes(random.Random(size).randbytes(size))


@pytest.mark.parametrize(("count", "size"), [(40, 900_000), (10, 950_000)])
async def test_many_files_of_nearly_a_mebibyte(
    box: ThreadedWarden, place: Place, count: int, size: int
) -> None:
    for number in range(count):
        write(place.folder / f"f{number}", size)
    assert (await come_back(box, place)).size == count * size


async def test_a_large_file_behind_small_ones(box: ThreadedWarden, place: Place) -> None:
    for number in range(25):
        write(place.folder / f"a{number:02}", 10_000)
    for number in range(3):
        write(place.folder / f"b{number}", tree._LARGE - 1)
    await come_back(box, place)


async def test_an_earlier_warden(
    box: ThreadedWarden, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends whole files, as long as it has any credit."""

    def sent(self: Packing) -> tuple[bytes, memoryview]:
        data, self._rest = self._rest, memoryview(b"")
        self._credit -= len(data)
        return frames.HEADER.pack(len(data), frames.DATA, self.channel), data

    monkeypatch.setattr(Packing, "_sent", sent)
    for number in range(25):
        write(place.folder / f"a{number:02}", 10_000)
    for number in range(10):
        write(place.folder / f"b{number}", 950_000)
    segments, _ = await packed(box, place)
    place.put_away()
    async with WardenClient(box) as client:
        await client.unpack(each(segments))
    assert seen(place.folder) == seen(place.before)


async def test_one_file_of_each_size(box: ThreadedWarden, place: Place) -> None:
    for size in SIZES:
        write(place.folder / f"f{size}", size)
    await come_back(box, place)


@pytest.mark.parametrize("size", [by + tree._LARGE for by in (-1, 0)] + [tree.PIECE - 1])
async def test_many_files_of_one_size(box: ThreadedWarden, place: Place, size: int) -> None:
    for number in range(12):
        write(place.folder / f"f{number}", size)
    await come_back(box, place)


@pytest.mark.parametrize(
    "size", [tree.PIECE, frames.MAX_PAYLOAD - 100, frames.MAX_PAYLOAD, STATE_LIMIT]
)
async def test_a_state_of_the_shell(box: ThreadedWarden, place: Place, size: int) -> None:
    """One more than fits is refused where it is saved."""
    text = ShellState.fresh().packed()
    text += b"#" * (size - len(text) - 1) + b"\n"
    carrying = box.warden._commands.carrying
    carrying.replace(ShellState(text, "/workspace"))
    write(place.folder / "f", tree._LARGE - 1)
    await come_back(box, place)
    assert carrying.state.packed() == text


def deep(folder: Path, length: int) -> None:
    """Folders in folders with names of a length, and a file in the last."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(MAX_DEPTH - 1):
        os.mkdir("d" * length, dir_fd=fd)
        inner = os.open("d" * length, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f" * length, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


@pytest.mark.parametrize("length", [1, 254])
async def test_folders_as_deep_as_a_walk_goes(
    box: ThreadedWarden, place: Place, length: int
) -> None:
    """The names in such a path have more bytes than a path may have in one call."""
    deep(place.folder, length)
    assert (await come_back(box, place)).folders == MAX_DEPTH - 1


async def test_a_path_that_no_record_has_room_for(box: ThreadedWarden, place: Place) -> None:
    """What is below it is left out, and named."""
    write(place.folder / "other", 10)
    deep(place.folder, 255)
    segments, about = await packed(box, place)
    assert {left.why for left in about.left_out} == {"its path has more than 65535 bytes"}
    assert about.files == 1
    place.put_away()
    async with WardenClient(box) as client:
        await client.unpack(each(segments))
    assert (place.folder / "other").read_bytes() == (place.before / "other").read_bytes()


@pytest.mark.parametrize("time_ns", [2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1])
async def test_times_that_a_record_has_no_room_for(
    box: ThreadedWarden, place: Place, time_ns: int
) -> None:
    """They become the last, or the first, that there is room for."""
    write(place.folder / "f", 10)
    os.utime(place.folder / "f", ns=(time_ns, time_ns))
    segments, _ = await packed(box, place)
    place.put_away()
    async with WardenClient(box) as client:
        await client.unpack(each(segments))
    was, now = ((at / "f").stat().st_mtime_ns for at in (place.before, place.folder))
    assert now == min(max(was, -(2**63)), 2**63 - 1)


def random_tree(folder: Path, seed: int) -> None:
    """Folders in folders with files of many kinds, some of them large."""
    dice = random.Random(seed)
    room = 24 << 20
    folders = [os.fsencode(folder)]
    files: list[bytes] = []
    for number in range(dice.choice([20, 300, 3000])):
        path = os.path.join(dice.choice(folders), odd_name(dice, number))
        if len(path) > 3800:
            continue
        what = dice.random()
        if what < 0.1:
            os.mkdir(path)
            folders.append(path)
        elif what < 0.15:
            os.symlink(odd_name(dice, number), path)
        elif what < 0.18:
            os.mkfifo(path)
        elif what < 0.25 and files:
            os.link(dice.choice(files), path, follow_symlinks=False)
        elif what < 0.3:
            sparse_file(path, dice)
            files.append(path)
        else:
            size = min(dice.choice(SIZES) if what < 0.6 else dice.randrange(2000), room)
            room -= size
            Path(os.fsdecode(path)).write_bytes(dice.randbytes(size))
            files.append(path)


def odd_name(dice: random.Random, number: int) -> bytes:
    odd = dice.choice([b"", b"\n", b"\xff\xfe", b" ' \"", "ü漢".encode(), b"x" * 250])
    return (b"%d" % number + odd)[:255]


def sparse_file(path: bytes, dice: random.Random) -> None:
    with open(path, "wb") as file:
        for _ in range(dice.randrange(3)):
            file.seek(dice.choice(SIZES), os.SEEK_CUR)
            file.write(dice.randbytes(dice.choice([1, 4096, tree.PIECE])))
        file.truncate(max(file.tell(), dice.choice(SIZES)))


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_random_trees(box: ThreadedWarden, place: Place, seed: int) -> None:
    random_tree(place.folder, seed)
    await come_back(box, place)
