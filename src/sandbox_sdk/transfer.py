"""Files between this machine and a sandbox: in chunks, verified, and whole or not at all."""

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
    """The chunks of a file; every iteration starts from the beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with await anyio.open_file(self._path, "rb") as file:
            while chunk := await file.read(_CHUNK):
                yield chunk


class ByteChunks:
    """The chunks of some bytes; every iteration starts from the beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), _CHUNK):
            yield self._data[start : start + _CHUNK]


async def save(download: Download, local_path: Path, *, warn: bool = True) -> Path:
    """Write a download to a temporary file, which is renamed when it is complete and verified.

    If local_path is a folder, the file goes into it, named as in the sandbox. warn: log what is
    missing from a tar. Raises TransferCorrupted.
    """
    target = _place(download.info, local_path)
    # Not named after the target, whose name may already have the maximum length.
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
    """The chunks of a download. Raises TransferCorrupted if size or checksum are wrong."""
    info, digest, size = download.info, hashlib.sha256(), 0
    end = TarEnd()
    async for chunk in download.chunks:
        digest.update(chunk)
        size += len(chunk)
        if info.size is not None and size > info.size:
            raise TransferCorrupted(
                f"{info.path}: more than its {info.size} bytes arrived; try again"
            )
        if warn and info.type == "directory":
            end.feed(chunk)
        yield chunk
    if info.size is not None and size != info.size:
        raise TransferCorrupted(f"{info.path}: {size} of {info.size} bytes arrived; try again")
    if info.sha256 is not None and digest.hexdigest() != info.sha256:
        raise TransferCorrupted(
            f"{info.path}: SHA-256 is {digest.hexdigest()} here and {info.sha256} on the server;"
            " try again"
        )
    if left_out := end.left_out():
        shown = "; ".join(left_out[:_SHOWN]) + ("; …" if len(left_out) > _SHOWN else "")
        log.warning("missing or incomplete in the tar of %s: %s", info.path, shown)


def _place(info: DownloadInfo, local_path: Path) -> Path:
    if not local_path.is_dir():
        return local_path
    name = own_name(info)
    return local_path / (f"{name}.tar" if info.type == "directory" else name)


def own_name(info: DownloadInfo) -> str:
    """The name of a file or folder without its path. It comes from the sandbox, so it is checked.

    Raises InvalidPath if it cannot be a file name here.
    """
    name = Path(info.filename).name
    if name in ("", "..") or "\0" in name:
        raise InvalidPath(
            f"{info.filename!r} cannot be a file name here; pass a local path with a name"
        )
    return name
