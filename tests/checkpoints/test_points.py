"""Points of a thread: a server that is killed at any step of them leaves a history that is true."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_server.checkpoints.checkpoints import Source
from sandbox_server.checkpoints.points import ThreadPoints
from sandbox_server.runtime.disk_copies import DiskUse

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Killed(BaseException):
    """Of a process that does nothing more."""


class Box:
    disk_owner = 1000

    async def copy_disk(self, target: Path, *, durable: bool) -> DiskUse:
        target.write_bytes(os.urandom(4096))
        return DiskUse(bytes=4096, inodes=1)


class Agent:
    @contextlib.asynccontextmanager
    async def pack(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[bytes]]:
        async def segments() -> AsyncIterator[bytes]:
            yield b"tree"

        yield segments()


class Thread:
    """Commands and undos, as the service does them, and what it would tell of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session_id = "first"
        self.way: list[str] = []
        """The commands that led to what the thread has."""
        self.maybe: list[str] = []
        """The same, if what was being done as it was killed counts."""
        self.points = self.opened()

    def opened(self) -> ThreadPoints:
        points = ThreadPoints(self.folder, self.session_id, most=9, most_bytes=1 << 30)
        points.settle()
        return points

    async def run(self, command: str) -> None:
        box: Any = Box()
        agent: Any = Agent()
        source = Source(box=box, agent=agent, provider="p", disk_bytes=1 << 20)
        self.maybe = [*self.way, command]
        await self.points.take(source, session_id=self.session_id, command=command)
        self.way = self.maybe

    async def run_nothing(self) -> None:
        way = self.way
        await self.run("nothing")
        self.way = way
        self.points.drop(self.points.get(None))

    async def undo(self) -> None:
        way = self.way
        point = self.points.get(None)
        await self.run("undo")
        self.points.go_back(point, "second")
        self.session_id = "second"
        self.way = self.maybe = way[:-1]
        self.points = self.opened()

    def told(self) -> list[str]:
        points = self.opened()
        for point in points.points.values():
            known = points.after(point) or point.number == points.last or point.command == "undo"
            assert known, f"what {point.command!r} changed cannot be told"
        names = {path.name for path in self.folder.iterdir()} - {"last", "back"}
        assert names == {f"{n}.{end}" for n in points.points for end in ("json", "img", "tree")}
        return [points.points[number].command for number in sorted(points.way())]


class Kill:
    """At the n-th change of a file's name: nothing is done from there on."""

    def __init__(self, at: int, patch: pytest.MonkeyPatch) -> None:
        self._left = at
        for of, name in ((Path, "rename"), (Path, "unlink"), (os, "unlink")):
            self._guard(of, name, patch)

    def _guard(self, of: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        real = getattr(of, name)

        def guarded(*args: Any, **options: Any) -> Any:
            if self._left <= 0:
                raise Killed
            self._left -= 1
            return real(*args, **options)

        patch.setattr(of, name, guarded)


async def test_a_kill_at_every_step(tmp_path: Path) -> None:
    at = 0
    while True:
        thread = Thread(tmp_path / str(at))
        thread.folder.mkdir()
        await thread.run("one")
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            Kill(at, patch)
            await thread.run("two")
            await thread.run_nothing()
            await thread.run("three")
            await thread.undo()
            await thread.run("four")
            break
        assert thread.told() in (thread.way, thread.maybe), f"killed at step {at}"
        thread.points = thread.opened()
        before = thread.told()
        await thread.run("next")
        assert thread.told() == [*before, "next"]
        shutil.rmtree(thread.folder)
        at += 1
    assert thread.told() == ["one", "two", "four"]
    assert at > 15
