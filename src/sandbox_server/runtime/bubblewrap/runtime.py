"""The bubblewrap runtime: boxes without an engine, with the host's programs.

There is no daemon. Each box has its own keeper (keeper.py) and survives a crash of the server; the
next server finds it in the state folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_server.private import state_folder
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Network, Runtime
from sandbox_server.runtime.bubblewrap import host, keeper
from sandbox_server.runtime.bubblewrap.probe import find_setup
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.bubblewrap.state import DEAD, Record, StateFolder, clear, kill
from sandbox_server.runtime.streams import ByteStream, SocketStream
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_server.runtime.warden.zipapp import warden_version
from sandbox_warden import frames

START_S = 20.0
"""How long a new box may take until its warden answers; twenty may be starting at once."""
END_S = 5.0
"""How long a keeper may take to clean up before we do it ourselves."""

_Result = TypeVar("_Result")


class BubblewrapBox(WardenBox):
    """A box, described by its record."""

    def __init__(self, record: Record, folder: Path) -> None:
        super().__init__(record.id)
        self._record = record
        self._folder = folder

    async def open_stream(self) -> ByteStream:
        try:
            return await SocketStream.connect_unix(self._folder / "sock")
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            raise SessionLost(f"box {self.id} has ended") from None
        except OSError as exc:
            raise RuntimeUnavailable(f"box {self.id} cannot be reached: {exc}") from exc

    async def is_alive(self) -> bool:
        return self._record.alive()

    async def destroy(self) -> None:
        await _end(self._record, self._folder)


class BubblewrapRuntime(Runtime):
    """Makes boxes with bubblewrap."""

    name = "bubblewrap"
    has_images = False

    def __init__(self, *, state_dir: Path | None = None) -> None:
        self._state = StateFolder(state_dir or state_folder())
        self._setup: Setup | None = None
        self._finding = asyncio.Lock()
        self._undoing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        way = "not yet tried" if self._setup is None else self._setup.namespace or "plain"
        return f"<BubblewrapRuntime {self._state.path}, {way}>"

    @property
    def networks(self) -> frozenset[Network]:
        return frozenset({"none"})

    @property
    def build(self) -> str:
        return warden_version()

    async def create(self, spec: BoxSpec) -> Box:
        """See Runtime. `spec.image` is ignored: boxes use the host's programs."""
        if spec.network != "none":
            raise RuntimeUnavailable(
                f"bubblewrap boxes have no network; for {spec.network!r} use the docker runtime"
            )
        setup = await self._get_setup()
        try:
            folder = self._state.new_box()
        except OSError as exc:
            raise RuntimeUnavailable(
                f"cannot create a folder for a box in {self._state.path}: {exc}"
            ) from exc
        try:
            with contextlib.ExitStack() as held:
                stderr = await _uninterrupted(
                    lambda: keeper.start(setup, self._state, spec, folder, held)
                )
                return await self._started(folder, stderr)
        except BaseException as exc:
            await self._undo(folder)
            if isinstance(exc, OSError | subprocess.SubprocessError):
                raise RuntimeUnavailable(f"box {folder.name} could not be made: {exc}") from exc
            raise

    async def boxes(self, owner: str) -> list[Box]:
        self._state.prepare()
        records = await asyncio.to_thread(self._state.records)
        return [self._box(record) for record in records if record.owner == owner]

    async def enforcement(self) -> Enforcement:
        return (await self._get_setup()).enforcement()

    async def close(self) -> None:
        if self._undoing:
            await asyncio.wait(self._undoing)

    def _box(self, record: Record) -> BubblewrapBox:
        return BubblewrapBox(record, self._state.folder(record.id))

    async def _get_setup(self) -> Setup:
        async with self._finding:
            if self._setup is None:
                self._setup = await asyncio.to_thread(find_setup, self._state)
            return self._setup

    async def _started(self, folder: Path, stderr: int) -> BubblewrapBox:
        answered = await _answers(folder / "sock")
        record = Record.read(folder)
        if answered and record is not None:
            return self._box(record)
        output = await _uninterrupted(lambda: keeper.read_startup_errors(stderr))
        raise RuntimeUnavailable(f"box {folder.name} did not start: {host.explain(output)}")

    async def _undo(self, folder: Path) -> None:
        """Remove a box in any stage of its start. Completes even if the caller is cancelled."""
        task = asyncio.create_task(self._remove(folder))
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)

    async def _remove(self, folder: Path) -> None:
        """Rename the folder first: a launcher that has not written its record yet then fails. If
        the record exists, the box is ended like any other."""
        grave = folder.with_name(folder.name + DEAD)
        with contextlib.suppress(FileNotFoundError):
            os.rename(folder, grave)
        record = Record.read(grave)
        if record is None:
            await asyncio.to_thread(clear, grave, None)
            self._state.sweep_claims()
        else:
            await _end(record, grave)


async def _uninterrupted(work: Callable[[], _Result]) -> _Result:
    """Run blocking work in a thread. If cancelled, wait for its end first: a thread cannot be
    stopped."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):  # Some callers cancel repeatedly.
                await asyncio.wait([task])
        raise


async def _answers(path: Path) -> bool:
    """Whether the warden answers HELLO. The socket exists before the warden reads from it."""
    try:
        async with asyncio.timeout(START_S):
            stream = await SocketStream.connect_unix(path)
            try:
                hello = {"version": frames.PROTOCOL_VERSION, "epoch": 0}
                await stream.write(frames.encode_json(frames.HELLO, 1, hello))
                return await stream.read() != b""
            finally:
                await stream.close()
    except (OSError, TimeoutError):
        return False


async def _end(record: Record, folder: Path) -> None:
    """Kill a box and wait for its keeper to clean up; if it does not, do it ourselves."""
    if record.alive():
        await asyncio.to_thread(kill, record)
        if not await record.keeper.ended(within_s=END_S):
            record.monitor.kill()
            record.keeper.kill()
            if not await record.keeper.ended(within_s=END_S):
                raise RuntimeUnavailable(
                    f"box {record.id} cannot be ended: its keeper, process {record.keeper.pid},"
                    f" did not exit within {END_S:g} s of SIGKILL"
                )
    await asyncio.to_thread(clear, folder, record)
