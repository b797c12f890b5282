"""The docker runtime: one container per box, with the warden as PID 1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiodocker
import structlog
from aiodocker.containers import DockerContainer

from sandbox_sdk.protocol.errors import (
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
)
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.private import state_folder
from sandbox_server.runtime import cpu_limit, disk_copies, gpus, loop_disk
from sandbox_server.runtime.base import Box, BoxSpec, Enforcement, Layer, Runtime, Tell
from sandbox_server.runtime.box_network import NO_BRIDGE, Network
from sandbox_server.runtime.control_groups import Measured, folders_of, measure, reclaim
from sandbox_server.runtime.disk_copies import DiskUse
from sandbox_server.runtime.docker import config
from sandbox_server.runtime.docker.config import BoxImage
from sandbox_server.runtime.docker.enforcement import enforcement, obstacle_to_disks
from sandbox_server.runtime.docker.engine import Endpoint, Engine
from sandbox_server.runtime.docker.environments import EnvironmentImages
from sandbox_server.runtime.docker.image import BoxImages
from sandbox_server.runtime.docker.stream import NoNetnsStream, open_exec, open_netns_stream
from sandbox_server.runtime.ending import Endings
from sandbox_server.runtime.layers import Interpreter
from sandbox_server.runtime.loop_disk import LoopDisk
from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden.client import WardenBox
from sandbox_server.runtime.warden.zipapp import warden_version
from sandbox_server.tasks import uninterrupted

log = structlog.get_logger(__name__)

DISK_FOLDER = Path("/var/tmp")
START_S = 45.0
"""How long the start of a container may take. An engine under load takes seconds; one that hangs
would keep the caller, and a place of the pool, for as long as any call may take."""
_REMOVED_S = 60.0
_BUILD_S = 3600.0
"""How long a call may take that moves the packages of an environment."""
_STALE_S = 600.0
"""A container that is created but not started for this long was abandoned."""
_T = TypeVar("_T")


class DockerBox(WardenBox):
    """A container, found by its name, which contains the box's id."""

    def __init__(
        self,
        engine: Engine,
        box_id: str,
        *,
        python: str,
        same_machine: bool,
        direct: bool,
        disk: str = "",
        disks: Path = DISK_FOLDER,
    ) -> None:
        """same_machine: whether we may be root on the engine's machine.
        direct: whether to try a direct stream before an exec there.
        disk: its handle, on the file system of the folder `disks`."""
        super().__init__(box_id)
        self._engine = engine
        self._relay = config.relay_command(python)
        self._gone = f"box {box_id} is gone"
        self._name = config.container_name(box_id)
        self._same_machine = same_machine
        self._direct = direct
        self._disk, self._disks = disk, disks
        self._groups: list[str] | None = None if same_machine else []

    @property
    def disk_owner(self) -> int | None:
        return config.UID if self._disk else None

    async def copy_disk(self, target: Path, *, durable: bool = True) -> DiskUse:
        mounts = {each["Destination"]: each["Source"] for each in (await self._show())["Mounts"]}
        try:
            return await asyncio.to_thread(
                disk_copies.copy_disk,
                self._disks,
                self._disk,
                mounts[WORKSPACE],
                target,
                durable=durable,
            )
        except OSError as exc:
            if not await self.is_alive():
                raise SessionLost(self._gone) from exc
            raise RuntimeUnavailable(f"the disk of box {self.id} cannot be copied: {exc}") from exc

    async def open_stream(self) -> ByteStream:
        if self._same_machine:
            pid, container_id = await self._process()
            if why := cpu_limit.allow(pid, container_id):
                log.info("box.no_cpu_burst", box=self.id, why=why)
            try:
                if self._direct:
                    return await open_netns_stream(pid, container_id, gone=self._gone)
            except NoNetnsStream as exc:
                log.info("box.no_netns_stream", box=self.id, why=str(exc))
            self._same_machine = False  # An exec needs no pid, and the burst stays.
        return await self._open_exec()

    async def _process(self) -> tuple[int, str]:
        """The pid of the warden on the engine's machine, and the container's id."""
        about = await self._show()
        if not about["State"]["Running"]:
            raise SessionLost(self._gone)
        return int(about["State"]["Pid"]), about["Id"]

    async def _open_exec(self) -> ByteStream:
        with self._engine.errors(gone=self._gone):
            try:
                relay = await self._engine.client.containers.container(self._name).exec(
                    self._relay, stdin=True, user=config.USER
                )
            except aiodocker.DockerError as exc:
                if exc.status == 409:
                    raise SessionLost(self._gone) from exc
                raise
        return await open_exec(self._engine, relay.id, gone=self._gone)

    async def _show(self) -> dict[str, Any]:
        with self._engine.errors(gone=self._gone):
            return dict(await self._engine.client.containers.container(self._name).show())

    async def measure(self) -> Measured | None:
        return measure(await self._control_groups())

    async def reclaim(self) -> None:
        await asyncio.to_thread(reclaim, await self._control_groups())

    async def _control_groups(self) -> Sequence[str]:
        if self._groups is None:
            with contextlib.suppress(SandboxError, OSError):
                self._groups = folders_of(*await self._process())
        return self._groups or ()

    async def is_alive(self) -> bool:
        try:
            about = await self._show()
        except SessionLost:
            return False
        return bool(about["State"]["Running"])

    async def destroy(self) -> None:
        await remove_container(self._engine, self._name)


async def remove_container(engine: Engine, name: str) -> None:
    """Kill and remove a container and its volumes; returns when it is gone. Idempotent. Raises
    RuntimeUnavailable."""
    container = engine.client.containers.container(name)
    with engine.errors():
        try:
            async with asyncio.timeout(_REMOVED_S):
                try:
                    await container.delete(force=True, v=True)
                except aiodocker.DockerError as exc:
                    if exc.status != 409:
                        raise
                    await container.wait(condition="removed")
        except aiodocker.DockerError as exc:
            if exc.status != 404:
                raise


class _NotStarted(RuntimeUnavailable):
    """The engine took the start of a container and did not answer."""


class DockerRuntime(Runtime):
    """Makes boxes on a Docker engine, local or remote.

    engine_runtime: an OCI runtime registered with the engine, such as "runsc" for gVisor.
    disk_folder: holds the unlinked files behind the boxes' disks.
    start_s: after which a start that the engine does not answer is given up.
    """

    name = "docker"

    def __init__(
        self,
        url: str | None = None,
        *,
        engine_runtime: str | None = None,
        disk_folder: Path = DISK_FOLDER,
        state_dir: Path | None = None,
        metrics: Metrics = NO_METRICS,
        start_s: float = START_S,
    ) -> None:
        self._start_s = start_s
        self._engine = Engine(Endpoint.of(url), metrics=metrics)
        self._engine_runtime = engine_runtime or None
        self._disk_folder = disk_folder
        self._state_dir = state_dir or state_folder()
        self._images = BoxImages(self._engine)
        self._building = Engine(self._engine.endpoint, call_s=_BUILD_S, metrics=metrics)
        self._environments = EnvironmentImages(self._building, self._images)
        self._obstacle: str | None = None
        self._making: set[str] = set()
        self._endings = Endings()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        runtime = f" {self._engine_runtime}" if self._engine_runtime else ""
        return f"<DockerRuntime {self.url}{runtime}, {len(self._making)} starting>"

    @property
    def url(self) -> str:
        """The engine's address."""
        return self._engine.endpoint.url

    @property
    def gvisor(self) -> bool:
        """Whether boxes run on gVisor's kernel instead of the host's."""
        name = self._engine_runtime or ""
        return "runsc" in name or "gvisor" in name

    @property
    def networks(self) -> frozenset[Network]:
        return NO_BRIDGE if self.gvisor else NO_BRIDGE | {"bridge"}

    async def about(self) -> str:
        return f"{await self._engine.version()} at {self.url}"

    @property
    def build(self) -> str:
        return warden_version()

    async def create(self, spec: BoxSpec) -> DockerBox:
        for volume in spec.volumes:
            if volume.owner and volume.owner[0] != config.UID and not volume.read_only:
                raise InvalidRequest(
                    f"docker boxes cannot write to {volume.source}: it belongs to uid"
                    f" {volume.owner[0]}, not to theirs, {config.UID}; use bubblewrap, or ro"
                )
        image = await self._images.derived(spec.image, spec.user)
        # Cancelling our call does not stop the engine, so let it finish and then remove the box.
        making = self._spawn(self._make(spec, image))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.shield(self._spawn(self._undo(making)))
            raise

    async def _undo(self, making: asyncio.Task[DockerBox]) -> None:
        with contextlib.suppress(SandboxError):
            box = await making
            await self._endings.end(box.id, box.destroy)

    async def _make(self, spec: BoxSpec, image: BoxImage) -> DockerBox:
        if spec.gpus is None:
            return await self._make_box(spec, image)
        async with gpus.one_at_a_time(self._state_dir):
            labels = [about["Labels"] for about in await self._containers()]
            used = [label[config.LABEL_GPUS] for label in labels if config.LABEL_GPUS in label]
            use = gpus.choose(gpus.present(), [*map(gpus.GpuUse.parse, used)], spec.gpus)
            return await self._make_box(spec, image, use)

    async def _make_box(
        self, spec: BoxSpec, image: BoxImage, use: gpus.GpuUse | None = None
    ) -> DockerBox:
        box_id = uuid.uuid4().hex[:16]
        created_at = time.time()
        python = config.READABLE_PYTHON if self.gvisor else config.PYTHON
        with await self._new_disk(spec, box_id) or contextlib.nullcontext() as disk:
            # gVisor writes to it late, so that a copy would lack what was written last.
            handle = disk.handle if disk and not self.gvisor else ""
            if disk is not None and spec.volumes:
                names = [each.name for each in spec.volumes]
                await uninterrupted(
                    lambda: loop_disk.make_folders(disk.device, names, owner=config.UID)
                )
            made = config.container_config(
                spec,
                box_id=box_id,
                created_at=created_at,
                image=image,
                device=disk.device if disk else None,
                disk=handle,
                engine_runtime=self._engine_runtime,
                python=python,
                gpus=use,
            )
            await self._start(box_id, made)
        return self._box(box_id, python=python, disk=handle)

    async def _start(self, box_id: str, made: dict[str, Any]) -> None:
        name = config.container_name(box_id)
        self._making.add(box_id)
        try:
            with self._engine.errors():
                container = await self._engine.client.containers.create(made, name=name)
                await self._started(container)
        except _NotStarted:
            # Its caller does not wait for this: the engine may hang here too. What stays is found
            # by its label when a server of this name starts.
            self._spawn(self._endings.end(box_id, partial(remove_container, self._engine, name)))
            raise
        except SandboxError:
            await self._endings.end(box_id, partial(remove_container, self._engine, name))
            raise
        finally:
            self._making.discard(box_id)

    async def _started(self, container: DockerContainer) -> None:
        """Raises _NotStarted."""
        try:
            async with asyncio.timeout(self._start_s):
                await container.start()
        except TimeoutError:
            silent = self._engine.silent("start a container", for_s=self._start_s)
            raise _NotStarted(silent.message) from None

    async def _new_disk(self, spec: BoxSpec, box_id: str) -> LoopDisk | None:
        limits, image = spec.limits, None if spec.disk is None else spec.disk.path
        if obstacle := await self._disk_obstacle():
            if image is not None:
                raise RuntimeUnavailable(f"no box can begin with the copy of a disk: {obstacle}")
            return None
        try:
            return await asyncio.to_thread(
                loop_disk.new_disk,
                self._disk_folder,
                size=limits.disk_bytes,
                inodes=limits.inodes,
                label=config.container_name(box_id),
                image=image,
            )
        except OSError as exc:
            message = f"cannot make a disk of {limits.disk_bytes} bytes for a box: {exc}"
            raise RuntimeUnavailable(message) from exc

    async def _disk_obstacle(self) -> str:
        """Why /workspace has no size limit here; empty if it has one. Cached."""
        if self._obstacle is None:
            self._obstacle = obstacle_to_disks(
                await self._engine.info(), unix_socket=bool(self._engine.endpoint.path)
            ) or await asyncio.to_thread(loop_disk.obstacle, self._disk_folder)
        return self._obstacle

    async def no_volumes(self) -> str:
        return await self._disk_obstacle()

    async def boxes(self, owner: str) -> list[Box]:
        await self._remove_volumes()
        found: list[Box] = []
        for about in await self._containers():
            labels, state = about["Labels"], about["State"]
            box_id = labels.get(config.LABEL_BOX, "")
            mine = labels.get(config.LABEL_OWNER) == owner
            if mine and state in ("running", "paused"):
                python = labels.get(config.LABEL_PYTHON, config.PYTHON)
                disk = labels.get(config.LABEL_DISK, "")
                found.append(self._box(box_id, python=python, disk=disk))
            elif box_id not in self._making and (mine or _is_stale(state, about["Created"])):
                with contextlib.suppress(SandboxError):
                    await remove_container(self._engine, about["Id"])
        return found

    def _box(self, box_id: str, *, python: str, disk: str) -> DockerBox:
        same_machine = bool(self._engine.endpoint.path) and os.geteuid() == 0
        return DockerBox(
            self._engine,
            box_id,
            python=python,
            same_machine=same_machine,
            direct=not self.gvisor,
            disk=disk,
            disks=self._disk_folder,
        )

    async def _remove_volumes(self) -> None:
        """Remove volumes of boxes that were removed by hand: `docker rm` without -v keeps them."""
        filters = {"label": [f"{config.LABEL_MARK}=1"]}
        with self._engine.errors(), contextlib.suppress(aiodocker.DockerError):
            await self._engine.client.volumes.prune(filters=filters)

    async def _containers(self) -> list[DockerContainer]:
        filters = json.dumps({"label": [f"{config.LABEL_MARK}=1"]})
        with self._engine.errors():
            return list(await self._engine.client.containers.list(all=1, filters=filters))

    # Environments

    @property
    def gpus(self) -> int:
        """Those of this machine: a remote engine does not tell which it has."""
        return len(gpus.present()) if self._engine.endpoint.path else 0

    async def interpreter(self, image: str) -> Interpreter:
        return await self._environments.interpreter(image)

    async def with_layer(self, spec: BoxSpec, layer: Layer, tell: Tell) -> BoxSpec:
        return await self._environments.with_layer(spec, layer, tell)

    async def build_image(self, dockerfile: str, tell: Tell) -> str:
        return await self._environments.build(dockerfile, tell)

    async def layer_made(self, spec: BoxSpec, layer: Layer) -> tuple[int, float] | None:
        return await self._environments.made(spec, layer)

    async def prune_layers(self, keep: Sequence[tuple[BoxSpec, Layer]]) -> int:
        return await self._environments.prune(keep)

    async def enforcement(self) -> Enforcement:
        info = await self._engine.info()
        return enforcement(info, no_disk=await self._disk_obstacle(), gvisor=self.gvisor)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._endings.close()
        await self._engine.close()
        await self._building.close()

    def _spawn(self, work: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_stale(state: str, created_at: float) -> bool:
    """Created long ago and never started: its server was killed between the two steps."""
    return state == "created" and time.time() - created_at > _STALE_S
