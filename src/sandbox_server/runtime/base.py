"""The interfaces every runtime implements: Runtime makes boxes, Box gives access to its agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_sdk.protocol.models import USER, WORKSPACE
from sandbox_server.registry.environments import Kernels, Pods
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.box_network import BoxNetwork, Network, variables_of
from sandbox_server.runtime.control_groups import Measured
from sandbox_server.runtime.disk_copies import DiskUse
from sandbox_server.runtime.layers import FILES, Interpreter

HOME = f"/home/{USER}"
ENVIRONMENT = {
    "HOME": HOME,
    "USER": USER,
    "LOGNAME": USER,
    "LANG": "C.UTF-8",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
}
"""Environment variables of every box, in every runtime."""
_CLAIM_BITS = 48
"""More than an epoch has, which may be a time in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class BoxUser:
    """Who commands run as."""

    name: str = USER
    home: str = HOME
    """Directly in /home. At HOME is a link to it, so that paths of ours are the same everywhere."""

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


USUAL_USER = BoxUser()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of one box."""

    memory_bytes: int = 512 << 20
    cpus: float = 0.5
    pids: int = 256
    disk_bytes: int = 1 << 30
    open_files: int = 4096
    tmp_bytes: int = 128 << 20
    shm_bytes: int = 64 << 20
    home_bytes: int = 64 << 20
    inodes: int = 100_000

    @property
    def file_bytes(self) -> int:
        """RLIMIT_FSIZE: the size of the largest file system, since a sparse file could claim any
        size and be read without end. 1 MiB more, so that a full disk fails with ENOSPC."""
        return max(self.disk_bytes, self.tmp_bytes, self.shm_bytes, self.home_bytes) + (1 << 20)

    @property
    def warden_files(self) -> int:
        """RLIMIT_NOFILE of the warden. More than a command's: Linux counts descriptors in flight
        through sockets per user, and a command at its limit must not block the warden."""
        return 2 * self.open_files


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """GPUs of a box. They are its own, unless `shared`."""

    count: int
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class DiskImage:
    """A copy of the disk of a box, which another can begin with."""

    path: Path
    owner: int
    """The uid that its files have."""


VOLUME_OWNER = 1000
"""The uid of the files on a volume's disk: that of docker boxes. Others show them as their own."""
VOLUME_OPTIONS = "discard,noinit_itable"
"""Of its mount. Unlike the disk of a box it survives a crash of the machine, so it has barriers."""


@dataclass(frozen=True, kw_only=True)
class BoxVolume:
    """A folder of a box that outlives it, directly in /workspace."""

    name: str
    """Of the folder."""
    size: int
    device: str = ""
    """A block device with ext4, open until the box has mounted it; or else"""
    source: str = ""
    """a folder of the host, and"""
    owner: tuple[int, int] | None = None
    """the uid and gid on the host of what the box makes there, if not those of the box, and"""
    lock: int | None = None
    """a descriptor that is to stay open as long as the box lives."""
    read_only: bool = False

    @property
    def path(self) -> str:
        return f"{WORKSPACE}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """What to create. `owner` is the worker that the box belongs to; boxes() finds it by that."""

    owner: str
    image: str = "sandbox-secure:latest"
    template: str | None = None
    """Of a hosted sandbox, where boxes have templates."""
    limits: Limits = field(default_factory=Limits)
    network: Network = "none"
    network_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the network, besides those that every box with such a one has."""
    network_files: Mapping[str, str] = field(default_factory=dict)
    """As `files`."""
    user: BoxUser = USUAL_USER
    env: dict[str, str] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
    """Files and folders of the host that the box has read-only, by path in the box. Only where
    boxes have no image."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents by path, written into the box before it is handed out."""
    setup: tuple[str, ...] = ()
    """Commands that the box runs before it is handed out."""
    gpus: GpuRequest | None = None
    pods: Pods = field(default_factory=Pods)
    """Only where boxes are pods."""
    kernels: Kernels = field(default_factory=Kernels)
    disk: DiskImage | None = None
    """What /workspace begins as, where a runtime copies disks. It has the image's size."""
    volumes: tuple[BoxVolume, ...] = ()
    deadman_s: float = 2100.0
    """The box ends itself if its owner has not contacted the warden for this long."""

    @property
    def has_interface(self) -> bool:
        """Whether the box itself is on a network."""
        return self.network == "bridge"

    def network_variables(self) -> dict[str, str]:
        return variables_of(self.network, self.network_env)

    def on(self, network: BoxNetwork) -> BoxSpec:
        return replace(
            self, network=network.mode, network_env=network.env, network_files=network.files
        )

    @property
    def file_bytes(self) -> int:
        """RLIMIT_FSIZE: see Limits."""
        largest = max((volume.size + (1 << 20) for volume in self.volumes), default=0)
        return max(self.limits.file_bytes, largest)


Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What an environment adds to boxes. See runtime/layers.py for the folder."""

    digest: str
    folder: Path | None = None
    """With the packages and files; None if there are none."""
    files: Sequence[str] = ()
    """Paths in the box of the folder's files."""
    apt: Sequence[str] = ()

    def file_sources(self) -> dict[str, Path]:
        """The host's files by path in the box."""
        if self.folder is None:
            return {}
        return {path: self.folder / FILES / str(n) for n, path in enumerate(self.files)}


@dataclass(frozen=True, kw_only=True)
class Enforcement:
    """Which limits a runtime enforces on this machine: empty if it does, else the reason."""

    memory: str = ""
    cpu: str = ""
    pids: str = ""
    disk: str = ""
    inodes: str = ""
    syscalls: str = ""
    network: str = ""
    """That of boxes that are to have none."""
    absent: frozenset[str] = frozenset()
    """Those of the missing that are not enforced in any way, not even a weaker one."""

    def missing(self) -> dict[str, str]:
        return {name: why for name, why in vars(self).items() if why and name != "absent"}


class Box(ABC):
    """One isolated environment. Its owner connects to its agent and destroys it."""

    def __init__(self, box_id: str) -> None:
        self.id = box_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @abstractmethod
    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> BoxAgent:
        """The agent of this box, for an owner of this epoch. deadman_s: see BoxSpec."""

    async def measure(self) -> Measured | None:
        """What it has used so far, from the kernel of this machine; None if that cannot be read:
        it may be on another machine, or be gone."""
        return None

    async def reclaim(self) -> None:  # noqa: B027
        """Have the kernel take back what memory of it can be read again, or swapped out, where it
        can be told to."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Whether the box still runs. Raises RuntimeUnavailable if that cannot be determined."""

    @property
    def ends_at(self) -> float | None:
        """When the box ends because somebody else wants it to, on the clock of the world; None as
        far as is known that nobody does."""
        return None

    @property
    def disk_owner(self) -> int | None:
        """The uid of the files on its disk; None if that cannot be copied at no cost."""
        return None

    async def copy_disk(self, target: Path, *, durable: bool = True) -> DiskUse:  # noqa: ARG002
        """Copy the disk of /workspace, to which nothing is written meanwhile, into a new file, on
        which a box can begin. durable: whether the file is to survive a crash of the machine.
        Raises RuntimeUnavailable, SessionLost."""
        raise RuntimeUnavailable(f"the disk of box {self.id} cannot be copied")

    @abstractmethod
    async def destroy(self) -> None:
        """Kill the box and return when it is gone. Idempotent. Raises RuntimeUnavailable."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What is written on a box about who has it."""

    owner: str = ""
    """The worker."""
    claims: int = 0
    """How often the box was claimed so far."""
    note: str = ""
    """What its owner has recorded of it, for whoever takes it over."""

    def fence(self, epoch: int) -> int:
        """The epoch for the box's warden of an owner whose lease has this one: higher than that of
        every earlier owner, since leases of different workers cannot be compared."""
        return (self.claims << _CLAIM_BITS) + epoch


class SharedBox(Box):
    """One that belongs to no machine of ours, and on which is written who has it: when a worker is
    gone, another takes over its boxes."""

    holding: Holding
    """As this process has last seen it."""

    @abstractmethod
    async def claim(self, owner: str, note: str) -> bool:
        """Give the box to an owner, unless anybody has claimed it since `holding` was seen: of many
        who try, one wins. False for a box that is gone. Raises RuntimeUnavailable."""

    @abstractmethod
    async def write(self, note: str, *, warm: str = "") -> bool:
        """Replace the note, under the same condition. warm: of what an unused box is made."""


class Runtime(ABC):
    """Makes boxes and finds existing ones. Use as an async context manager."""

    name: str
    has_images: bool = True
    """Whether boxes are made from images. If not, they use the host's programs, or"""
    has_templates: bool = False
    """are made from templates of somebody who hosts them."""
    has_pods: bool = False
    """Whether boxes are pods of a cluster."""

    @property
    def networks(self) -> frozenset[Network]:
        """The networks that a box can have. Those through the server take an agent with tunnels."""
        return frozenset({"none", "bridge"})

    @property
    def build(self) -> str:
        """Version of the agent in new boxes. Warm boxes with another version are not handed out."""
        return ""

    async def about(self) -> str:
        """Version and address of what makes the boxes. Raises RuntimeUnavailable if it does not
        answer."""
        return self.name

    async def no_volumes(self) -> str:
        """Why boxes cannot have volumes; empty if they can."""
        return f"{self.name} boxes cannot have volumes; use docker or bubblewrap"

    # Environments: a runtime whose boxes cannot have packages implements none of these.

    async def interpreter(self, _image: str) -> Interpreter:
        """The python3 of boxes of this image, for which packages are installed."""
        raise InvalidRequest(f"{self.name} boxes cannot have packages; use docker or bubblewrap")

    @property
    def gpus(self) -> int:
        """How many GPUs boxes could have, if nobody else had any."""
        return 0

    def refuses(self, _layer: Layer) -> str:
        """Why boxes cannot have something that a layer is to have; empty if they can."""
        return ""

    async def with_layer(self, _spec: BoxSpec, _layer: Layer, _tell: Tell) -> BoxSpec:
        """The spec of boxes that have a layer; made once, and found again afterwards.

        tell: called with lines of progress. Raises EnvironmentFailed with the end of the log.
        """
        raise InvalidRequest(f"{self.name} boxes cannot have packages; use docker or bubblewrap")

    async def build_image(self, _dockerfile: str, _tell: Tell) -> str:
        """The image of a Dockerfile, built if it is missing or has changed."""
        raise InvalidRequest(f"{self.name} boxes have no image; use docker")

    async def layer_made(self, _spec: BoxSpec, _layer: Layer) -> tuple[int, float] | None:
        """Bytes and time of what with_layer() made of it; None if there is nothing."""
        return None

    async def layers_in_use(self) -> set[str]:
        """Host paths of the layers of running boxes."""
        return set()

    async def prune_layers(self, _keep: Sequence[tuple[BoxSpec, Layer]]) -> int:
        """Remove what with_layer() made of others; returns how many bytes that were."""
        return 0

    @abstractmethod
    async def create(self, spec: BoxSpec) -> Box:
        """Start a new box. Its warden may need a moment before it answers.

        Raises RuntimeUnavailable. If it fails or is cancelled, nothing is left behind.
        """

    @abstractmethod
    async def boxes(self, owner: str) -> list[Box]:
        """All running boxes of this owner, including those of earlier processes."""

    # Boxes that belong to no machine: a runtime whose boxes do implements none of these.

    @property
    def shared(self) -> bool:
        """Whether other workers can take its boxes over. Then they are all SharedBox."""
        return False

    async def shared_boxes(self, _owners: Sequence[str]) -> Sequence[SharedBox]:
        """The running boxes of other workers. What those have left half made is removed."""
        return ()

    async def shared_box(self, _box_id: str) -> SharedBox | None:
        """A running box, whoever has it."""
        return None

    @abstractmethod
    async def enforcement(self) -> Enforcement:
        """Which limits are enforced on this machine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Close connections. Boxes keep running."""
