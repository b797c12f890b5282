"""The file methods of the agent, through E2B's own."""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping

import e2b
from e2b import AsyncSandbox, FileType

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import Batch, Download, FileEntry, FolderMade, ListEnd, Uploaded
from sandbox_server.runtime.base import HOME
from sandbox_server.runtime.e2b.connection import BoxConnection
from sandbox_server.runtime.e2b.downloads import (
    E2bDownload,
    as_it_is_read,
    download_about,
    of_unknown_size,
    tar_of,
)

MAX_PATH = 4096
_SHARED = (WORKSPACE, HOME, "/tmp", "/dev/shm")
"""What is not here, nor in the home, is not written to."""
_DEPTH = 256
"""How deep a listing goes at most."""
_BATCH = 500
_USUAL_MODE = 0o644
_TYPES = {FileType.FILE: "file", FileType.DIR: "directory", FileType.SYMLINK: "symlink"}


class FileCalls(BoxConnection):
    """Of BoxAgent."""

    async def put(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        limit: int = 1 << 62,
        metadata: Mapping[str, str] | None = None,
    ) -> Uploaded:
        sandbox = await self.sandbox()
        target = writable_path(path, self._home)
        part = f"{posixpath.dirname(target)}/.sandbox-{uuid.uuid4().hex}.part"
        upload = _Upload(chunks, path, limit, dict(metadata or {}))
        try:
            async with self._about_path(target):
                if await self._is_folder(sandbox, target):
                    raise errors.InvalidPath(f"{target} is a folder")
                await upload.write(sandbox, part)
            if mode & 0o777 != _USUAL_MODE:
                await self._chmod(part, mode & 0o777)
            async with self._about_path(target):
                await sandbox.files.rename(part, target)
        except BaseException:
            with contextlib.suppress(Exception):
                await sandbox.files.remove(part)
            raise
        return Uploaded(path=target, size=upload.size)

    async def _is_folder(self, sandbox: AsyncSandbox, path: str) -> bool:
        with contextlib.suppress(e2b.NotFoundException):
            return _type(await sandbox.files.get_info(path)) == "directory"
        return False

    @contextlib.asynccontextmanager
    async def get(self, path: str, *, digest: bool = False) -> AsyncIterator[Download]:
        processes, sandbox = await self.opened(), await self.sandbox()
        about = await download_about(processes, full_path(path), digest=digest)
        if about.type == "directory":
            yield E2bDownload(about, tar_of(processes, about.path))
            return
        if about.size == 0:
            yield await of_unknown_size(processes, about)
            return
        async with self._about_path(about.path):
            stream = await sandbox.files.read(about.path, format="stream")
            async with stream:
                yield await as_it_is_read(about, stream)

    async def stat(self, path: str, *, follow: bool = False) -> FileEntry:
        sandbox, full = await self.sandbox(), full_path(path)
        if follow:
            full = (await download_about(await self.opened(), full, digest=False)).path
        async with self._about_path(full):
            return _entry(await sandbox.files.get_info(full))

    async def batches(
        self, path: str, *, recursive: bool = False, depth: int | None = None, limit: int = 1000
    ) -> AsyncGenerator[Batch | ListEnd]:
        sandbox, full = await self.sandbox(), full_path(path)
        levels = min(depth or (_DEPTH if recursive else 1), _DEPTH)
        async with self._about_path(full):
            found = await sandbox.files.get_info(full)
            if found.symlink_target is not None:
                full = (await download_about(await self.opened(), full, digest=False)).path
                found = await sandbox.files.get_info(full)
            if found.type != FileType.DIR:
                yield [_entry(found)]
                yield ListEnd(truncated=False)
                return
            entries = await sandbox.files.list(full, depth=levels)
        entries.sort(key=lambda each: each.path.split("/"))
        for at in range(0, min(len(entries), limit), _BATCH):
            yield [_entry(each) for each in entries[at : min(at + _BATCH, limit)]]
        yield ListEnd(truncated=len(entries) > limit)

    async def rename(self, path: str, to: str, *, replace: bool = False) -> FileEntry:
        sandbox = await self.sandbox()
        source, target = writable_path(path, self._home), writable_path(to, self._home)
        if target.startswith(f"{source}/"):
            raise errors.InvalidPath(f"{source} cannot be moved into itself")
        async with self._about_path(source):
            await sandbox.files.get_info(source)
            await self._check_target(sandbox, target, replace=replace)
            await sandbox.files.make_dir(posixpath.dirname(target))
            return _entry(await sandbox.files.rename(source, target))

    async def _check_target(self, sandbox: AsyncSandbox, target: str, *, replace: bool) -> None:
        """Raises InvalidPath."""
        try:
            found = await sandbox.files.get_info(target)
        except e2b.NotFoundException:
            return
        if _type(found) == "directory":
            raise errors.InvalidPath(f"{target} is a folder; add a file name")
        if not replace:
            raise errors.InvalidPath(f"{target} exists; set replace to overwrite it")

    async def mkdir(self, path: str) -> FolderMade:
        sandbox, full = await self.sandbox(), full_path(path)
        async with self._about_path(full):
            made = await sandbox.files.make_dir(writable_path(path, self._home))
            return FolderMade(created=made, entry=_entry(await sandbox.files.get_info(full)))

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        sandbox, full = await self.sandbox(), writable_path(path, self._home)
        async with self._about_path(full):
            found = await sandbox.files.get_info(full)
            if not recursive and _type(found) == "directory" and await sandbox.files.list(full):
                raise errors.InvalidPath(f"{full} is not empty; set recursive to remove all in it")
            await sandbox.files.remove(full)

    async def _chmod(self, path: str, mode: int) -> None:
        """Raises InvalidPath."""
        processes = await self.opened()
        code, _, said = await processes.output('chmod -- "$1" "$2"', f"{mode:o}", path)
        if code != 0:
            raise errors.InvalidPath(said.decode("utf-8", "replace").strip()[:300])

    def _about_path(self, path: str) -> contextlib.AbstractAsyncContextManager[None]:
        return self._account.failures.translated(f"box {self.box_id}", path=path)


class _Upload:
    """Chunks on their way into a file; what goes wrong with them is not E2B's fault."""

    def __init__(
        self, chunks: AsyncIterable[bytes], path: str, limit: int, metadata: dict[str, str]
    ) -> None:
        self.size = 0
        self._metadata = metadata
        self._chunks = chunks
        self._path = path
        self._limit = limit
        self._failure: BaseException | None = None

    async def write(self, sandbox: AsyncSandbox, part: str) -> None:
        """Raises FileTooLarge, and what the chunks raise."""
        try:
            await sandbox.files.write(part, self._bounded(), metadata=self._metadata or None)
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise

    async def _bounded(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks:
                self.size += len(chunk)
                if self.size > self._limit:
                    raise errors.FileTooLarge.upload(self._path, limit_bytes=self._limit)
                yield chunk
        except BaseException as exc:
            self._failure = exc
            raise


def _type(info: e2b.EntryInfo) -> str:
    """E2B tells of a link what it leads to."""
    if info.symlink_target is not None:
        return "symlink"
    return "other" if info.type is None else _TYPES[info.type]


def _entry(info: e2b.EntryInfo) -> FileEntry:
    return FileEntry.model_validate(
        {
            "name": info.name,
            "path": info.path,
            "type": _type(info),
            "size": info.size,
            "mode": f"{info.mode & 0o7777:04o}",
            "modified_at": info.modified_time.timestamp(),
            "owner": info.owner,
            "group": info.group,
            "target": info.symlink_target,
            "metadata": info.metadata,
        }
    )


def full_path(path: str) -> str:
    """Relative ones begin in /workspace. Raises InvalidPath."""
    if not path or "\0" in path or len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise errors.InvalidPath(
            f"path {path[:100]!r}: a path must have 1 to {MAX_PATH} bytes and no NUL character"
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise errors.InvalidPath(f"path {path[:100]!r} is not valid text") from None
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


def writable_path(path: str, home: str) -> str:
    """The same, of what is to be written. Raises InvalidPath."""
    full = full_path(path)
    places = list(dict.fromkeys([*_SHARED, home]))
    if not any(full == place or full.startswith(f"{place}/") for place in places):
        raise errors.InvalidPath(
            f"{full} is outside of the folders that can be written to: {', '.join(places)}"
        )
    if full in places:
        raise errors.InvalidPath(f"{full} is a folder that every sandbox has: name something in it")
    return full
