"""The bubblewrap runtime: boxes without an engine, with the host's programs.

There is no daemon. Each box has its own keeper (keeper.py) and survives a crash of the server; the
next server finds it in the state folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.private import state_folder
from sandbox_server.runtime import disk_copies, gpus
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Layer, Runtime, Tell
from sandbox_server.runtime.box_network import NO_BRIDGE, Network
from sandbox_server.runtime.bubblewrap import host, keeper
from sandbox_server.runtime.bubblewrap.layers import layered, probe, refusal
from sandbox_server.runtime.bubblewrap.probe import find_setup
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.bubblewrap.spare import Spare
from sandbox_server.runtime.bubblewrap.state import DEAD, Record, StateFolder, clear, kill
from sandbox_server.runtime.bubblewrap.zygote import Zygote
from sandbox_server.runtime.control_groups import Measured, measure, reclaim
from sandbox_server.runtime.disk_copies import DiskUse
from sandbox_server.runtime.layers import Interpreter
from sandbox_server.runtime.streams import ByteStream, SocketStream
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_server.runtime.warden.zipapp import warden_version
from sandbox_server.tasks import uninterrupted
from sandbox_warden import frames

log = structlog.get_logger(__name__)

START_S = 20.0
"""How long a new box may take until its warden answers; twenty may be starting at once."""
END_S = 30.0
"""How long a keeper may take to clean up before we do it ourselves: what a box has written and not
yet sent to its disk can hold it up."""


class BubblewrapBox(WardenBox):
    """A box, described by its record."""

    def __init__(self, record: Record, folder: Path, disks: Path) -> None:
        super().__init__(record.id)
        self._record = record
        self._folder = folder
        self._disks = disks

    async def open_stream(self) -> ByteStream:
        try:
            return await SocketStream.connect_unix(self._folder / "sock")
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            raise SessionLost(f"box {self.id} has ended") from None
        except OSError as exc:
            raise RuntimeUnavailable(f"box {self.id} cannot be reached: {exc}") from exc

    async def measure(self) -> Measured | None:
        return measure(self._record.groups)

    async def reclaim(self) -> None:
        await asyncio.to_thread(reclaim, self._record.groups)

    async def is_alive(self) -> bool:
        return self._record.alive()

    async def destroy(self) -> None:
        await _end(self._record, self._folder)

    @property
    def disk_owner(self) -> int | None:
        return self._record.disk_owner if self._record.disk else None

    async def copy_disk(self, target: Path, *, durable: bool = True) -> DiskUse:
        record = self._record
        try:
            pid = await asyncio.to_thread(_first_process, record)
            return await uninterrupted(
                lambda: disk_copies.copy_disk(
                    self._disks,
                    record.disk,
                    f"/proc/{pid}/root{WORKSPACE}",
                    target,
                    durable=durable,
                )
            )
        except OSError as exc:
            if not record.alive():
                raise SessionLost(f"box {self.id} has ended") from None
            raise RuntimeUnavailable(f"the disk of box {self.id} cannot be copied: {exc}") from exc


class BubblewrapRuntime(Runtime):
    """Makes boxes with bubblewrap."""

    name = "bubblewrap"
    has_images = False

    def __init__(self, *, state_dir: Path | None = None, disks: Path | None = None) -> None:
        """disks: for the files behind the disks of boxes; without, the state folder."""
        self._state = StateFolder(state_dir or state_folder(), disks)
        self._setup: Setup | None = None
        self._finding = asyncio.Lock()
        self._python: Interpreter | None = None
        self._zygote: Zygote | None = None
        self._forked = False
        """Whether a box of the zygote's has answered."""
        self._spare = Spare(self._state, self._remove)
        self._undoing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        way = "not yet tried" if self._setup is None else self._setup.namespace or "plain"
        return f"<BubblewrapRuntime {self._state.path}, {way}>"

    @property
    def networks(self) -> frozenset[Network]:
        return NO_BRIDGE

    @property
    def build(self) -> str:
        return warden_version()

    async def no_volumes(self) -> str:
        setup = await self._get_setup()
        return "" if setup.has_disk or setup.uids is None else setup.no_disk or setup.no_namespace

    async def create(self, spec: BoxSpec) -> Box:
        """See Runtime. `spec.image` is ignored: boxes use the host's programs."""
        if spec.has_interface:
            raise RuntimeUnavailable(
                f"bubblewrap boxes are on no network; for {spec.network!r} use the docker runtime"
            )
        setup = await self._get_setup()
        zygote = self._zygote
        try:
            return await self._make(setup, spec, zygote)
        except RuntimeUnavailable as exc:
            if zygote is None or self._forked:
                raise
            log.warning("zygote.unusable", why=exc.message)
            self._zygote = None
            await asyncio.to_thread(zygote.close)
            return await self._make(setup, spec, None)

    async def _make(self, setup: Setup, spec: BoxSpec, zygote: Zygote | None) -> Box:
        if spec.gpus is None:
            return await self._make_box(setup, spec, zygote)
        async with gpus.one_at_a_time(self._state.path):
            records = await asyncio.to_thread(self._state.records)
            used = [gpus.GpuUse.parse(record.gpus) for record in records if record.gpus]
            use = gpus.choose(gpus.present(), used, spec.gpus)
            return await self._make_box(setup, spec, zygote, use)

    async def _make_box(
        self, setup: Setup, spec: BoxSpec, zygote: Zygote | None, use: gpus.GpuUse | None = None
    ) -> Box:
        spare = await self._spare.take() if zygote is not None else None
        folder = spare.folder if spare is not None else self._new_folder()
        try:
            with ExitStack() as held:
                if zygote is None:
                    stderr = await uninterrupted(
                        lambda: keeper.start(setup, self._state, spec, folder, held, use)
                    )
                    return await self._started(folder, stderr, ready=_answers(folder / "sock"))
                bare = await uninterrupted(
                    lambda: keeper.fork(setup, self._state, spec, folder, held, zygote, spare, use)
                )
                box = await self._started(folder, bare.stderr, ready=bare.ready())
            self._forked = True
            self._spare.make(setup, zygote)
            return box
        except BaseException as exc:
            await self._undo(folder)
            if isinstance(exc, OSError | subprocess.SubprocessError):
                raise RuntimeUnavailable(f"box {folder.name} could not be made: {exc}") from exc
            raise

    def _new_folder(self) -> Path:
        try:
            return self._state.new_box()
        except OSError as exc:
            raise RuntimeUnavailable(
                f"cannot create a folder for a box in {self._state.path}: {exc}"
            ) from exc

    async def boxes(self, owner: str) -> list[Box]:
        self._state.prepare()
        records = await asyncio.to_thread(self._state.records)
        return [self._box(record) for record in records if record.owner == owner]

    async def interpreter(self, _image: str = "") -> Interpreter:
        """See Runtime. The same for every image: boxes use the host's."""
        if self._python is None:
            self._python = await probe((await self._get_setup()).python.executable)
        return self._python

    @property
    def gpus(self) -> int:
        return len(gpus.present())

    def refuses(self, layer: Layer) -> str:
        return refusal(layer)

    async def with_layer(self, spec: BoxSpec, layer: Layer, _tell: Tell) -> BoxSpec:
        return layered(spec, layer, await self.interpreter())

    async def layers_in_use(self) -> set[str]:
        self._state.prepare()
        records = await asyncio.to_thread(self._state.records)
        return {path for record in records for path in record.layers}

    async def enforcement(self) -> Enforcement:
        return (await self._get_setup()).enforcement()

    async def close(self) -> None:
        await self._spare.close()
        if self._undoing:
            await asyncio.wait(self._undoing)
        if self._zygote is not None:
            await asyncio.to_thread(self._zygote.close)

    def _box(self, record: Record) -> BubblewrapBox:
        return BubblewrapBox(record, self._state.folder(record.id), self._state.disks)

    async def _get_setup(self) -> Setup:
        async with self._finding:
            if self._setup is None:
                self._setup = await asyncio.to_thread(find_setup, self._state)
                self._zygote = Zygote(self._setup) if self._setup.can_fork else None
            return self._setup

    async def _started(
        self, folder: Path, stderr: int, *, ready: Coroutine[None, None, bool]
    ) -> BubblewrapBox:
        serves = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                serves = await ready
        record = Record.read(folder)
        if serves and record is not None:
            return self._box(record)
        output = await uninterrupted(lambda: keeper.read_startup_errors(stderr))
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


def _first_process(record: Record) -> int:
    """Of the box. Raises OSError."""
    for child in record.monitor.children():
        return child.pid
    raise ProcessLookupError


async def _answers(path: Path) -> bool:
    """Whether the warden answers HELLO. The socket exists before the warden reads from it."""
    try:
        stream = await SocketStream.connect_unix(path)
    except OSError:
        return False
    try:
        hello = {"version": frames.PROTOCOL_VERSION, "epoch": 0}
        await stream.write(frames.encode_json(frames.HELLO, 1, hello))
        return await stream.read() != b""
    except OSError:
        return False
    finally:
        await stream.close()


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
