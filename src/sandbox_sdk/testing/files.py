"""The files of a fake sandbox: a dictionary that behaves like a file system."""

from __future__ import annotations

import io
import posixpath
import tarfile
import time
from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime

from sandbox_sdk.protocol.errors import FileMissing, InvalidPath
from sandbox_sdk.protocol.models import WORKSPACE, FileEntry

PLACES = (WORKSPACE, "/home/sandboxuser", "/tmp", "/dev/shm")


class FakeFiles(MutableMapping[str, bytes]):
    """Contents by path, absolute or below /workspace. A folder exists while a file is in it."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, float]] = {}

    def __repr__(self) -> str:
        return f"<FakeFiles {sorted(self._files)}>"

    def __getitem__(self, path: str) -> bytes:
        return self._files[resolve(path)][0]

    def __setitem__(self, path: str, content: bytes | str) -> None:
        data = content.encode() if isinstance(content, str) else content
        real = resolve(path)
        if self.is_folder(real):
            raise InvalidPath(f"{real} is a folder; name a file in it")
        self._files[real] = data, time.time()

    def __delitem__(self, path: str) -> None:
        del self._files[resolve(path)]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def copy(self, *, without: str | None = None) -> FakeFiles:
        """without: the beginning of paths that are left out."""
        made = FakeFiles()
        made._files = {
            path: content
            for path, content in self._files.items()
            if without is None or not path.startswith(without)
        }
        return made

    def is_folder(self, path: str) -> bool:
        real = resolve(path)
        return real in PLACES or any(name.startswith(real + "/") for name in self._files)

    def entry(self, path: str) -> FileEntry:
        """Raises FileMissing."""
        real = resolve(path)
        if real in self._files:
            content, changed = self._files[real]
            return _entry(real, "file", len(content), changed)
        if not self.is_folder(real):
            raise FileMissing.at(real)
        below = [t for name, (_, t) in self._files.items() if name.startswith(real + "/")]
        return _entry(real, "directory", 4096, max(below, default=0.0))

    def list(self, path: str, *, recursive: bool) -> list[FileEntry]:
        """Raises FileMissing."""
        top = self.entry(path)
        if top.type == "file":
            return [top]
        names: set[str] = set()
        for name in self._files:
            if name.startswith(top.path + "/"):
                parts = name.removeprefix(top.path + "/").split("/")
                for depth in range(1, len(parts) + 1 if recursive else 2):
                    names.add("/".join(parts[:depth]))
        return [self.entry(f"{top.path}/{name}") for name in sorted(names)]

    def rename(self, path: str, to: str, *, replace: bool) -> FileEntry:
        """Raises FileMissing, InvalidPath."""
        source, target = self.entry(path).path, resolve(to)
        if source in PLACES:
            raise InvalidPath(f"{source} cannot be moved: every sandbox has it; move what is in it")
        if self.is_folder(target):
            raise InvalidPath(f"{target} is a folder; name what is to be in it")
        if target in self._files and not replace:
            raise InvalidPath(f"{target} exists; pass replace=True, or another name")
        moving = [name for name in self._files if f"{name}/".startswith(f"{source}/")]
        for name in moving:
            self._files[target + name.removeprefix(source)] = self._files.pop(name)
        return self.entry(target)

    def read(self, path: str) -> bytes:
        """A file, or a folder as a tar. Raises FileMissing."""
        top = self.entry(path)
        if top.type == "file":
            return self[top.path]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for entry in self.list(top.path, recursive=True):
                member = tarfile.TarInfo(entry.path.removeprefix(top.path + "/"))
                member.mtime = int(entry.modified_at.timestamp())
                if entry.type == "directory":
                    member.type = tarfile.DIRTYPE
                    tar.addfile(member)
                else:
                    member.size = entry.size
                    tar.addfile(member, io.BytesIO(self[entry.path]))
        return buffer.getvalue()


def resolve(path: str) -> str:
    """The absolute path. Raises InvalidPath outside of the places a sandbox may write to."""
    real = posixpath.normpath(posixpath.join(WORKSPACE, path))
    if not path or not any(real == place or real.startswith(place + "/") for place in PLACES):
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
        }
    )
