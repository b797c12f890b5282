"""The files of a fake sandbox: a dictionary that behaves like a file system, and its watches."""

from __future__ import annotations

import io
import posixpath
import tarfile
import time
import uuid
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio

from sandbox_sdk.protocol.errors import FileMissing, InvalidPath, InvalidRequest, NotFound
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    FileChange,
    FileChangeKind,
    FileChangeList,
    FileEntry,
)

PLACES = (WORKSPACE, "/home/sandboxuser", "/tmp", "/dev/shm")
ABOVE = ("/", "/home", "/dev")
"""Folders that a sandbox has besides, to read."""
_LOOK_S = 0.005


@dataclass
class FakeWatch:
    path: str
    recursive: bool
    events: list[FileChange] = field(default_factory=list)


class FakeWatches:
    """What changes in folders of one sandbox. Nothing is ever dropped."""

    def __init__(self) -> None:
        self._watches: dict[str, FakeWatch] = {}

    def start(self, path: str, *, recursive: bool) -> str:
        ident = uuid.uuid4().hex[:16]
        self._watches[ident] = FakeWatch(path, recursive)
        return ident

    def end(self, ident: str) -> bool:
        return self._watches.pop(ident, None) is not None

    def log(self, kind: FileChangeKind, path: str, what: str | None = "file") -> None:
        for watch in self._watches.values():
            below = posixpath.relpath(path, watch.path)
            if below.startswith("..") or ("/" in below and not watch.recursive):
                continue
            change = {"position": len(watch.events) + 1, "kind": kind, "path": below, "type": what}
            watch.events.append(FileChange.model_validate(change))

    async def read(self, ident: str, *, after: int, wait_s: float) -> FileChangeList:
        """Raises NotFound, InvalidRequest."""
        with anyio.move_on_after(wait_s):
            while len(self._find(ident).events) == after:  # noqa: ASYNC110 - threads log too.
                await anyio.sleep(_LOOK_S)
        events = self._find(ident).events
        if after > len(events):
            raise InvalidRequest(f"after: {after} is no position of this watch")
        return FileChangeList(events=events[after:], position=len(events))

    def _find(self, ident: str) -> FakeWatch:
        try:
            return self._watches[ident]
        except KeyError:
            raise NotFound(f"no watch {ident}: it was ended; make a new one") from None


class FakeFiles(MutableMapping[str, bytes]):
    """Contents by path, absolute or below /workspace. A folder exists while a file is in it, or if
    it was made."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, float]] = {}
        self._folders: dict[str, float] = {}
        """Those that were made, and when."""
        self._metadata: dict[str, dict[str, str]] = {}
        self.watches = FakeWatches()

    def __repr__(self) -> str:
        return f"<FakeFiles {sorted(self._files)}>"

    def __getitem__(self, path: str) -> bytes:
        return self._files[resolve(path)][0]

    def __setitem__(self, path: str, content: bytes | str) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.store(path, data, {})

    def store(self, path: str, data: bytes, metadata: dict[str, str]) -> None:
        real = resolve(path)
        if self.is_folder(real):
            raise InvalidPath(f"{real} is a folder; name a file in it")
        if real not in self._files:
            self._tell_made(real)
            self.watches.log("chmod", real, None)
        self._files[real] = data, time.time()
        self._metadata[real] = metadata
        self.watches.log("write", real, "file")

    def __delitem__(self, path: str) -> None:
        del self._files[resolve(path)]
        self.watches.log("remove", resolve(path))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def copy(self, *, without: str | None = None) -> FakeFiles:
        """without: the beginning of paths that are left out."""

        def kept(path: str) -> bool:
            return without is None or not path.startswith(without)

        made = FakeFiles()
        made._metadata = dict(self._metadata)
        made._files = {path: what for path, what in self._files.items() if kept(path)}
        made._folders = {path: at for path, at in self._folders.items() if kept(path)}
        return made

    def is_folder(self, path: str) -> bool:
        real = resolve(path, write=False)
        inside = real in self._folders or any(name.startswith(real + "/") for name in self._all())
        return inside or real in (*PLACES, *ABOVE)

    def _all(self) -> Iterator[str]:
        yield from self._files
        yield from self._folders

    def entry(self, path: str) -> FileEntry:
        """Raises FileMissing."""
        real = resolve(path, write=False)
        if real in self._files:
            content, changed = self._files[real]
            entry = _entry(real, "file", len(content), changed)
            return entry.model_copy(update={"metadata": self._metadata.get(real) or None})
        if not self.is_folder(real):
            raise FileMissing.at(real)
        below = [t for name, (_, t) in self._files.items() if name.startswith(real + "/")]
        made = self._folders.get(real, 0.0)
        return _entry(real, "directory", 4096, max(below, default=made))

    def list(self, path: str, *, depth: int) -> list[FileEntry]:
        """depth: how many folders in folders, this one included. Raises FileMissing."""
        top = self.entry(path)
        if top.type == "file":
            return [top]
        above = top.path.rstrip("/") + "/"
        names: set[str] = set()
        for name in (*self._all(), *(PLACES if top.path in ABOVE else ())):
            if name.startswith(above):
                parts = name.removeprefix(above).split("/")
                for level in range(1, min(len(parts), depth) + 1):
                    names.add("/".join(parts[:level]))
        return [self.entry(above + name) for name in sorted(names)]

    def make_folder(self, path: str) -> bool:
        """Whether it was not there before. Raises InvalidPath."""
        real = resolve(path)
        steps = real.split("/")
        for each in ("/".join(steps[:end]) for end in range(2, len(steps) + 1)):
            if each in self._files:
                raise InvalidPath(f"{real} cannot be a folder: {each} is a file")
        if self.is_folder(real):
            return False
        self._tell_made(real)
        self._folders[real] = time.time()
        return True

    def remove(self, path: str, *, recursive: bool) -> None:
        """Raises FileMissing, InvalidPath."""
        real = resolve(path)
        if real in PLACES:
            raise InvalidPath(
                f"{real} cannot be removed: every sandbox has it; remove what is in it"
            )
        folder = self.entry(real).type == "directory"
        below = [name for name in self._all() if f"{name}/".startswith(f"{real}/") and name != real]
        if below and not recursive:
            raise InvalidPath(f"{real} is a folder with something in it; set recursive")
        for name in sorted({*below, real}, reverse=True):
            self._files.pop(name, None)
            self._folders.pop(name, None)
            self.watches.log("remove", name, "directory" if folder and name == real else None)

    def _tell_made(self, real: str) -> None:
        """A file or folder, with the folders on the way."""
        steps = real.split("/")
        for each in ("/".join(steps[:end]) for end in range(2, len(steps))):
            if not self.is_folder(each):
                self.watches.log("create", each, "directory")
        self.watches.log("create", real)

    def rename(self, path: str, to: str, *, replace: bool) -> FileEntry:
        """Raises FileMissing, InvalidPath."""
        source, target = self.entry(resolve(path)).path, resolve(to)
        if source in PLACES:
            raise InvalidPath(f"{source} cannot be moved: every sandbox has it; move what is in it")
        if self.is_folder(target):
            raise InvalidPath(f"{target} is a folder; name what is to be in it")
        if target in self._files and not replace:
            raise InvalidPath(f"{target} exists; pass replace=True, or another name")

        def moved(name: str) -> str:
            return (
                target + name.removeprefix(source) if f"{name}/".startswith(f"{source}/") else name
            )

        self.watches.log("rename", source)
        self._files = {moved(name): content for name, content in self._files.items()}
        self._folders = {moved(name): at for name, at in self._folders.items()}
        self._metadata = {moved(name): what for name, what in self._metadata.items()}
        self.watches.log("create", target)
        return self.entry(target)

    def read(self, path: str) -> bytes:
        """A file, or a folder as a tar. Raises FileMissing."""
        top = self.entry(path)
        if top.type == "file":
            return self[top.path]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for entry in self.list(top.path, depth=256):
                member = tarfile.TarInfo(entry.path.removeprefix(top.path + "/"))
                member.mtime = int(entry.modified_at.timestamp())
                if entry.type == "directory":
                    member.type = tarfile.DIRTYPE
                    tar.addfile(member)
                else:
                    member.size = entry.size
                    tar.addfile(member, io.BytesIO(self[entry.path]))
        return buffer.getvalue()


def resolve(path: str, *, write: bool = True) -> str:
    """The absolute path. Raises InvalidPath; to write, also outside of the places where a sandbox
    may."""
    real = posixpath.normpath(posixpath.join(WORKSPACE, path))
    inside = any(real == place or real.startswith(place + "/") for place in PLACES)
    if not path or (write and not inside):
        raise InvalidPath(f"{path!r} is outside of {', '.join(PLACES)}; use a path below these")
    return real


def _entry(path: str, kind: str, size: int, changed: float) -> FileEntry:
    return FileEntry.model_validate(
        {
            "name": posixpath.basename(path),
            "path": path,
            "type": kind,
            "size": size,
            "mode": "0755" if kind == "directory" else "0644",
            "modified_at": datetime.fromtimestamp(changed, UTC),
            "owner": "sandboxuser",
            "group": "sandboxuser",
        }
    )
