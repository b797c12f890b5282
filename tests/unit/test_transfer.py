"""A download is there whole and verified, or not at all."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_sdk import (
    AsyncSandboxClient,
    Download,
    InvalidPath,
    SandboxError,
    TransferCorrupted,
)
from sandbox_sdk.protocol.models import ArtifactTarget, DownloadRequest
from sandbox_sdk.testing import FakeBackend


class BadWay(FakeBackend):
    """Loses, changes or cuts off what is downloaded."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault

    @contextlib.asynccontextmanager
    async def download(self, request: DownloadRequest | ArtifactTarget) -> AsyncIterator[Download]:
        async with super().download(request) as download:
            yield Download(download.info, self._spoilt(download.chunks))

    async def _spoilt(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if self._fault == "changed":
                yield chunk[:-1] + b"?"
            elif self._fault == "short":
                yield chunk[:-1]
            elif self._fault == "endless":
                while True:
                    yield chunk
            else:
                yield chunk
                raise SandboxError("the connection broke off")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("changed", TransferCorrupted),
        ("short", TransferCorrupted),
        ("endless", TransferCorrupted),
        ("cut", SandboxError),
    ],
)
async def test_what_did_not_arrive_as_it_was_sent(
    fault: str, error: type[SandboxError], tmp_path: Path
) -> None:
    target = tmp_path / "file"
    target.write_text("from before")
    async with AsyncSandboxClient("t", backend=BadWay(fault)) as sandbox:
        await sandbox.upload_bytes(b"new content", "file")
        with pytest.raises(error):
            await sandbox.download_file("file", target)
        with pytest.raises(error):
            await sandbox.download_bytes("file")
    assert target.read_text() == "from before"
    assert list(tmp_path.iterdir()) == [target], "no piece of it is left"


async def test_a_link_at_the_place_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("untouched")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    async with AsyncSandboxClient("t", backend=FakeBackend()) as sandbox:
        await sandbox.upload_bytes(b"new", "file")
        assert await sandbox.download_file("file", tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").read_bytes() == b"new"
    assert (tmp_path / "elsewhere").read_text() == "untouched"


class Misnamed(FakeBackend):
    """Says what it likes about what a file is called."""

    filename = ""

    @contextlib.asynccontextmanager
    async def download(self, request: DownloadRequest | ArtifactTarget) -> AsyncIterator[Download]:
        async with super().download(request) as download:
            info = download.info.model_copy(update={"filename": self.filename})
            yield Download(info, download.chunks)


async def test_names_that_a_sandbox_gives(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    backend = Misnamed()
    async with AsyncSandboxClient("t", backend=backend) as sandbox:
        await sandbox.upload_bytes(b"new", "file")
        for backend.filename in ("", ".", "..", "/", "a/..", "a\0b"):
            with pytest.raises(InvalidPath):
                await sandbox.download_file("file", folder)
        longest = "x" * 255
        for backend.filename in ("../../up", "/etc/abs", longest):
            await sandbox.download_file("file", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["abs", "up", longest]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
