"""Files between this machine and a sandbox: in pieces, verified, and never half there."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from sandbox_sdk.errors import InvalidPath, TransferCorrupted
from sandbox_sdk.left_out import TarEnd
from sandbox_sdk.protocol.models import DownloadInfo
from sandbox_sdk.protocol.sandboxes import Download

log = logging.getLogger("sandbox")

_CHUNK = 256 * 1024
_SHOWN = 5


class FileChunks:
    """A file of this machine in pieces; every iteration begins at its start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with await anyio.open_file(self._path, "rb") as file:
            while chunk := await file.read(_CHUNK):
                yield chunk


class ByteChunks:
    """Bytes in pieces; every iteration begins at their start."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), _CHUNK):
            yield self._data[start : start + _CHUNK]


async def save(download: Download, local_path: Path, *, warn: bool = True) -> Path:
    """Write a download to disk: beside its place first, under its name when whole and verified.

    warn: log what a tar lacks.

    A folder as local_path means a file in it, named as in the sandbox. Raises TransferCorrupted.
    """
    target = _place(download.info, local_path)
    # Not named after the target: a name may already be as long as a name can be.
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        async with await anyio.open_file(part, "xb") as file:
            async for chunk in _verified(download, warn=warn):
                await file.write(chunk)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


async def read(download: Download) -> bytes:
    """The whole of a download. Raises TransferCorrupted."""
    return b"".join([chunk async for chunk in _verified(download)])


async def _verified(download: Download, *, warn: bool = True) -> AsyncIterator[bytes]:
    """The chunks of a download, and an error at the end if they are not what the server sent."""
    info, digest, size = download.info, hashlib.sha256(), 0
    end = TarEnd()
    async for chunk in download.chunks:
        digest.update(chunk)
        size += len(chunk)
        if info.size is not None and size > info.size:
            raise TransferCorrupted(f"{info.path}: more than its {info.size} bytes came; try again")
        if warn and info.type == "directory":
            end.feed(chunk)
        yield chunk
    if info.size is not None and size != info.size:
        raise TransferCorrupted(f"{info.path}: {size} of {info.size} bytes arrived; try again")
    if info.sha256 is not None and digest.hexdigest() != info.sha256:
        raise TransferCorrupted(f"{info.path} did not arrive as it was sent; try again")
    if left_out := end.left_out():
        shown = "; ".join(left_out[:_SHOWN]) + ("; …" if len(left_out) > _SHOWN else "")
        log.warning("left out of the tar of %s, or not whole in it: %s", info.path, shown)


def _place(info: DownloadInfo, local_path: Path) -> Path:
    if not local_path.is_dir():
        return local_path
    name = own_name(info)
    return local_path / (f"{name}.tar" if info.type == "directory" else name)


def own_name(info: DownloadInfo) -> str:
    """What a file or folder is called by itself. The name comes from the sandbox: never a path.

    Raises InvalidPath where it cannot be a name here.
    """
    name = Path(info.filename).name
    if name in ("", "..") or "\0" in name:
        raise InvalidPath(f"{info.filename!r} is no name for a file here: say how to call it")
    return name
