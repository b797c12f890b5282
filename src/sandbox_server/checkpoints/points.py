"""Points: copies of a session before each of its commands, to go back to.

They are where a copy of a disk costs nothing, and of that machine alone: a folder for each thread,
with the copy of the disk, the rest (home, /tmp, the state of the shell) as a packed tree, and what
is told of the point. They survive the server, not the machine: nothing is flushed for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sandbox_sdk.protocol.errors import InvalidRequest, NotFound, RuntimeUnavailable
from sandbox_sdk.protocol.models import WORKSPACE, ChangedPaths, PointOf
from sandbox_server.checkpoints.checkpoints import PAUSE_S, PLACES, Source
from sandbox_server.checkpoints.manifest import DiskCopy, folder_of
from sandbox_server.private import private_folder
from sandbox_server.runtime.base import DiskImage
from sandbox_server.runtime.disk_reading import added_bytes

MOST = 250
"""Of one thread; the oldest goes when there is another."""
TEXT = 2000
"""Characters of a command that are kept."""
_READ = 1 << 20
_BESIDES = [place for place in PLACES if place != WORKSPACE]
_LAST, _BACK = "last", "back"
"""Files of a thread's folder: where it is, and where it is about to go back to."""
_SUFFIXES = ("json", "img", "tree")
"""In the order in which they are deleted: no point without its files."""


class Point(BaseModel):
    """What there was before a command."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    number: int
    follows: int | None = None
    """The point before it, on the way that led here."""
    at: float
    session_id: str
    what: PointOf = "command"
    command: str
    cwd: str | None = None
    disk: DiskCopy
    added: int = 0
    """Bytes that the point before does not have."""
    command_id: str | None = None
    exit_code: int | None = None
    duration_ms: float | None = None
    """Of the command, once it has ended."""
    files: ChangedPaths | None = None
    """What it changed, once somebody has asked."""
    led_to: str | None = None
    """The last session that began with it."""


class _GoingBack(BaseModel):
    """A thread is about to begin with a point."""

    to: int
    session_id: str


class ThreadPoints:
    """Those of one thread. One process has it at a time. Methods may raise RuntimeUnavailable."""

    def __init__(
        self, folder: Path, session_id: str | None = None, *, most: int, most_bytes: int
    ) -> None:
        """Blocks. session_id: of the thread's newest session.
        most_bytes: that the points may add to each other."""
        self.folder = folder
        self._most, self._most_bytes = most, most_bytes
        self._taking = asyncio.Lock()
        self.points = {point.number: point for point in _read(folder)}
        """By number, the oldest first."""
        self.last = _read_last(folder, self.points)
        """The last point on the way to what the thread has now."""
        back = _read_back(folder)
        self._back = self.points.get(back.to) if back and back.session_id == session_id else None
        if self._back is not None:  # It has gone back meanwhile.
            self.points[self._back.number] = self._back.model_copy(update={"led_to": session_id})
            self.last = self._back.follows

    def __repr__(self) -> str:
        return f"<ThreadPoints {len(self.points)} in {self.folder}>"

    def settle(self) -> None:
        """Finish what an earlier session or server did not. Blocks; nobody else may use the thread
        now."""
        if not self.folder.exists():
            return
        if self._back is not None:
            self._write(self.points[self._back.number])
        self._go(self.last)
        if self._back is not None:
            os.unlink(self.folder / _BACK)
        names = {f"{number}.{suffix}" for number in self.points for suffix in _SUFFIXES}
        for path in self.folder.glob("*"):
            if path.name not in names | {_LAST, _BACK}:
                with contextlib.suppress(OSError):
                    path.unlink()

    async def take(self, source: Source, **about: Any) -> Point:
        """A point of a box as it is now. about: fields of the point. Raises SessionLost."""
        async with self._taking:
            with as_unavailable():
                private_folder(self.folder.parent)
                private_folder(self.folder)
                number = max(self.points, default=0) + 1
                newest = max(self.points, default=None)
                try:
                    disk = await self._copy(source, number)
                except BaseException:
                    self._delete(number)
                    raise
                point = Point(number=number, follows=self.last, at=time.time(), disk=disk, **about)
                if newest is not None:
                    added = await asyncio.to_thread(added_bytes, *map(self.image, (number, newest)))
                    point = point.model_copy(update={"added": added})
                _put_new(self._file(number), point)
                self._go(number)  # Only now, so that a kill leaves both or neither.
                _new(self._file(number)).rename(self._file(number))
                self.points[number] = point
                self._drop_oldest()
        return point

    async def _copy(self, source: Source, number: int) -> DiskCopy:
        async with source.agent.pack(_BESIDES, pause_s=PAUSE_S, still=True) as packed:
            use = await source.box.copy_disk(self.image(number), durable=False)
            with (self.folder / f"{number}.tree").open("wb") as file:
                async for segment in packed:
                    file.write(len(segment).to_bytes(8, "big"))
                    file.write(segment)
        return DiskCopy(
            file=f"{number}.img",
            provider=source.provider,
            size=source.disk_bytes,
            used=use.bytes,
            inodes=use.inodes,
            owner=source.box.disk_owner or 0,
        )

    def get(self, number: int | None) -> Point:
        """number: left out, the one before the last command. Raises NotFound."""
        wanted = self.last if number is None else number
        if wanted is None:
            raise NotFound("there is nothing to undo in this thread")
        if wanted not in self.points:
            raise NotFound(
                f"nothing is kept from before command {wanted} of this thread; see its history for"
                " what there is"
            )
        return self.points[wanted]

    def disk_image(self, point: Point) -> DiskImage:
        return DiskImage(path=self.image(point.number), owner=point.disk.owner)

    def image(self, number: int) -> Path:
        return self.folder / f"{number}.img"

    async def segments(self, point: Point) -> AsyncIterator[bytes]:
        """The rest of it, as it was packed."""
        with as_unavailable(), (self.folder / f"{point.number}.tree").open("rb") as file:
            while head := file.read(8):
                yield await asyncio.to_thread(file.read, int.from_bytes(head, "big"))

    def way(self) -> set[int]:
        """The numbers of all points on the way to what the thread has now."""
        found: set[int] = set()
        at = self.last
        while at is not None and at in self.points and at not in found:
            found.add(at)
            at = self.points[at].follows
        return found

    def after(self, point: Point) -> Point | None:
        """The point that was taken next on its way: what there was after its command."""
        following = (each for each in self.points.values() if each.follows == point.number)
        return next(following, None)

    def note(self, point: Point, **about: Any) -> None:
        """Remember more of a point, unless it was dropped meanwhile."""
        if point.number in self.points:
            with contextlib.suppress(OSError):
                self._write(self.points[point.number].model_copy(update=about))

    def drop(self, point: Point) -> None:
        """Forget a point before which nothing was run."""
        if self.last == point.number:
            with contextlib.suppress(OSError):
                self._file(point.number).rename(_new(self._file(point.number)))
            self._go(point.follows)
        self._delete(point.number)

    def go_back(self, point: Point, session_id: str) -> None:
        """What comes next follows what was before the point, once there is a session of that id:
        the one that begins with the point."""
        with as_unavailable():
            self._go(self.last)  # What an earlier session may have begun with.
            _replace(self.folder / _BACK, _GoingBack(to=point.number, session_id=session_id))

    @contextlib.asynccontextmanager
    async def now(self, source: Source) -> AsyncIterator[Path]:
        """A copy of a box's disk as it is now. Raises SessionLost."""
        image = self.folder / f"now-{os.urandom(4).hex()}.img"
        try:
            with as_unavailable():
                async with source.agent.pack([], pause_s=PAUSE_S, still=True) as packed:
                    await source.box.copy_disk(image, durable=False)
                    async for _ in packed:
                        pass
            yield image
        finally:
            with contextlib.suppress(OSError):
                os.unlink(image)

    # Files

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _write(self, point: Point) -> None:
        _replace(self._file(point.number), point)
        self.points[point.number] = point

    def _go(self, number: int | None) -> None:
        _replace(self.folder / _LAST, number)
        self.last = number

    def _drop_oldest(self) -> None:
        while len(self.points) > 1 and (
            len(self.points) > self._most
            or sum(each.added for each in self.points.values()) > self._most_bytes
        ):
            self._delete(min(self.points))

    def _delete(self, number: int) -> None:
        self.points.pop(number, None)
        for suffix in _SUFFIXES:
            with contextlib.suppress(OSError):
                os.unlink(self.folder / f"{number}.{suffix}")
        with contextlib.suppress(OSError):
            os.unlink(_new(self._file(number)))


class Points:
    """Of all threads."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        why_not: str = "this server keeps no copies of disks",
        most: int = MOST,
        most_bytes: int = 1 << 30,
    ) -> None:
        """folder: on the file system of the boxes' disks; without, why_not says why there are no
        points. most, most_bytes: of one thread."""
        self._folder = folder
        self._why_not = why_not
        self._most, self._most_bytes = most, most_bytes

    def __repr__(self) -> str:
        return f"<Points in {self._folder}>"

    def require(self, source: Source) -> None:
        """Raises InvalidRequest if a box has none."""
        why = self._why_not if self._folder is None else ""
        if not why and source.box.disk_owner is None:
            why = f"the disk of a box of {source.provider} cannot be copied in a moment"
        if why:
            raise InvalidRequest(f"history is not to be had here: {why}; use checkpoints instead")

    async def of(self, tenant: str, thread_id: str, session_id: str | None) -> ThreadPoints:
        """session_id: of the thread's newest session. Raises InvalidRequest, RuntimeUnavailable."""
        folder = self._of(tenant, thread_id)
        if folder is None:
            raise InvalidRequest(f"history is not to be had here: {self._why_not}")
        with as_unavailable():
            return await asyncio.to_thread(
                ThreadPoints, folder, session_id, most=self._most, most_bytes=self._most_bytes
            )

    async def forget(self, tenant: str, thread_id: str) -> None:
        """Delete all of a thread."""
        if (folder := self._of(tenant, thread_id)) is not None and folder.exists():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def tidy(self, older_than_s: float) -> None:
        """Delete those of threads that have not got one for so long."""
        if self._folder is not None:
            await asyncio.to_thread(_tidy, self._folder, older_than_s)

    def _of(self, tenant: str, thread_id: str) -> Path | None:
        if self._folder is None:
            return None
        thread = hashlib.sha256(thread_id.encode()).hexdigest()[:32]
        return self._folder / folder_of(tenant) / thread


def _read(folder: Path) -> list[Point]:
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValidationError):
            found.append(Point.model_validate_json(path.read_bytes()))
    return sorted(found, key=lambda point: point.number)


def _read_last(folder: Path, known: Mapping[int, Point]) -> int | None:
    try:
        number: int | None = json.loads((folder / _LAST).read_bytes())
    except (OSError, ValueError):
        return None
    if number is not None and number not in known:
        with contextlib.suppress(OSError, ValidationError):  # Killed before it was there.
            new = _new(folder / f"{number}.json")
            return Point.model_validate_json(new.read_bytes()).follows
    return number


def _read_back(folder: Path) -> _GoingBack | None:
    try:
        return _GoingBack.model_validate_json((folder / _BACK).read_bytes())
    except (OSError, ValidationError):
        return None


def _replace(path: Path, content: BaseModel | int | None) -> None:
    _put_new(path, content)
    _new(path).rename(path)


def _put_new(path: Path, content: BaseModel | int | None) -> None:
    if isinstance(content, BaseModel):
        text = content.model_dump_json(exclude_none=True)
    else:
        text = json.dumps(content)
    _new(path).write_text(text)


def _new(path: Path) -> Path:
    """Where the content of a file is before it takes its place."""
    return path.with_name(f"{path.name}.new")


def _tidy(folder: Path, older_than_s: float) -> None:
    for thread in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            if time.time() - (thread / _LAST).stat().st_mtime > older_than_s:
                shutil.rmtree(thread, ignore_errors=True)


@contextlib.contextmanager
def as_unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise RuntimeUnavailable(f"the history of the thread cannot be used: {exc}") from exc
