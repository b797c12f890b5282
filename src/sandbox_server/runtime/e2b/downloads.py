"""Files on their way out of an E2B sandbox; a folder comes as a tar."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator

from pydantic import ValidationError

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import Download, DownloadAbout
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.processes import Ended, Piece, Processes

_TYPES = {"regular file": "file", "regular empty file": "file", "directory": "directory"}
_TAR = """set -o pipefail
cd -- "$1" && find . -mindepth 1 -printf '%P\\0' |
  tar -cf - --no-recursion --null --verbatim-files-from -T -
"""
_TAR_S = 3600.0
_SAID = 1000
_SMALL = 256 * 1024


async def download_about(processes: Processes, path: str, *, digest: bool) -> DownloadAbout:
    """Raises FileMissing, InvalidPath."""
    _, output, _ = await processes.output(scripts.ABOUT, path, "digest" if digest else "")
    lines = output.decode("utf-8", "replace").split("\n", 5)
    if len(lines) < 2 or lines[0] == "denied":
        raise errors.InvalidPath(
            f"{path} may not be used by the sandbox (permission denied); change its mode with chmod"
        )
    if lines[0] == "missing":
        raise errors.FileMissing(f"{path} does not exist; list its folder to see what is there")
    if lines[0] not in _TYPES:
        raise errors.InvalidPath(f"{path} is neither a file nor a folder, but a {lines[0]}")
    return _about(lines, path)


def _about(lines: list[str], path: str) -> DownloadAbout:
    kind = _TYPES[lines[0]]
    try:
        return DownloadAbout.model_validate(
            {
                "path": lines[5],
                "type": kind,
                "size": int(lines[1]) if kind == "file" else None,
                "modified_at": float(lines[3]),
                "mode": lines[2],
                "sha256": None if lines[4] == "-" else lines[4],
            }
        )
    except (ValidationError, ValueError, IndexError) as exc:
        raise errors.RuntimeUnavailable(f"the sandbox tells nonsense of {path}: {exc}") from None


async def of_unknown_size(processes: Processes, about: DownloadAbout) -> E2bDownload:
    """A file that says it is empty, as those of /proc do, whatever is in it."""
    _, data, _ = await processes.output('cat -- "$1"', about.path)
    return _known(about, data)


async def as_it_is_read(about: DownloadAbout, chunks: AsyncIterable[bytes]) -> E2bDownload:
    """A small file is what was read, as it may be written again and again; a large one must be
    what was described."""
    if about.size is None or about.size > _SMALL:
        return E2bDownload(about, chunks)
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) >= _SMALL:
            break
    return _known(about, bytes(data[:_SMALL]))


def _known(about: DownloadAbout, data: bytes) -> E2bDownload:
    digest = None if about.sha256 is None else hashlib.sha256(data).hexdigest()
    return E2bDownload(about.model_copy(update={"size": len(data), "sha256": digest}), _once(data))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


class E2bDownload(Download):
    def __init__(self, about: DownloadAbout, chunks: AsyncIterable[bytes]) -> None:
        self.about = about
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The last chunk comes when all of it is known to be right. Raises RuntimeUnavailable."""
        size, digest, held = 0, hashlib.sha256(), b""
        async for data in self._chunks:
            if held:
                yield held
            size, held = size + len(data), data
            digest.update(data)
        wrong_size = self.about.size is not None and size != self.about.size
        if wrong_size or self.about.sha256 not in (None, digest.hexdigest()):
            raise errors.RuntimeUnavailable(
                f"{self.about.path} changed while it was read; try again"
            )
        if held:
            yield held


async def tar_of(processes: Processes, path: str) -> AsyncIterator[bytes]:
    """Raises RuntimeUnavailable."""
    said = b""
    args = ["-c", _TAR, "sandbox", path]
    async with contextlib.aclosing(processes.start(args, within_s=_TAR_S)) as events:
        async for event in events:
            if isinstance(event, Piece) and event.stream == "stdout":
                yield event.data
            elif isinstance(event, Piece):
                said = (said + event.data)[-_SAID:]
            elif isinstance(event, Ended) and event.exit_code != 0:
                why = said.decode("utf-8", "replace").strip() or f"exit code {event.exit_code}"
                raise errors.RuntimeUnavailable(f"{path} could not be read whole: {why}")
