"""What a tar lacks is found at its end, wherever the stream is cut."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandbox_sdk import left_out
from sandbox_sdk.left_out import TarEnd
from sandbox_warden import tar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    return tmp_path


def packed(folder: Path) -> bytes:
    fd = os.open(folder, os.O_RDONLY)
    try:
        return b"".join(data for data in tar.Tar(fd) if data is not None)
    finally:
        os.close(fd)


def told(data: bytes, size: int) -> list[str]:
    end = TarEnd()
    for start in range(0, len(data), size):
        end.feed(data[start : start + size])
    return end.left_out()


@pytest.mark.parametrize("size", [1, 700, 65536, 1 << 20])
def test_what_is_left_out(folder: Path, size: int) -> None:
    os.mkfifo(folder / "pipe\x1b\n")
    data = packed(folder)
    (line,) = told(data[-4096:] if size == 1 else data, size)
    assert line == r"pipe\x1b\n: it is neither a file, a folder nor a link"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["file", left_out.NOTICE]
    assert left_out.NOTICE == tar.NOTICE


def test_more_than_is_told(folder: Path) -> None:
    for number in range(300):
        os.mkfifo(folder / f"{number:0250}")
    assert told(packed(folder), 65536)[-1] == "and 100 more"


def test_nothing_is_left_out(folder: Path) -> None:
    (folder / left_out.NOTICE).write_text("a file of the user's\n\nwith text\n")
    (folder / "zz").write_text("after it")
    assert told(packed(folder), 65536) == []
    assert told(b"", 1) == []
    assert told(bytes(1024), 512) == []


def test_the_notice_is_taken_off_an_archive(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    archive = tmp_path_factory.mktemp("archive") / "folder.tar"
    archive.write_bytes(packed(folder))
    whole = archive.read_bytes()
    assert left_out.take_notice(archive) == []
    os.mkfifo(folder / "pipe")
    archive.write_bytes(packed(folder))
    assert len(left_out.take_notice(archive)) == 1
    assert archive.read_bytes() == whole
