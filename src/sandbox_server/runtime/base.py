"""The interfaces every runtime implements: Runtime makes boxes, Box leads to its agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from sandbox_sdk.protocol.models import USER
from sandbox_server.runtime.agent import BoxAgent

Network = Literal["none", "bridge"]
HOME = f"/home/{USER}"
ENVIRONMENT = {
    "HOME": HOME,
    "USER": USER,
    "LOGNAME": USER,
    "LANG": "C.UTF-8",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
}
"""What every box has, whatever makes it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one box may use."""

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
        """The largest size of a file: what the largest place holds, or a file with holes could
        claim any size and be read for ever. And a little more, so that a full disk is reported as
        what it is."""
        return max(self.disk_bytes, self.tmp_bytes, self.shm_bytes, self.home_bytes) + (1 << 20)

    @property
    def warden_files(self) -> int:
        """How many descriptors the warden may have, more than a command: Linux counts what is on
        its way through sockets by user, and a command at its limit must not stop its warden."""
        return 2 * self.open_files


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """The box wanted. `owner` is the worker that will answer for it and find it again."""

    owner: str
    image: str = "sandbox-secure:latest"
    limits: Limits = field(default_factory=Limits)
    network: Network = "none"
    env: dict[str, str] = field(default_factory=dict)
    deadman_s: float = 2100.0
    """The box ends by itself when nobody has spoken to its warden for this long."""


@dataclass(frozen=True, kw_only=True)
class Enforcement:
    """Which limits a runtime enforces on this machine: an empty text, or why it does not."""

    memory: str = ""
    cpu: str = ""
    pids: str = ""
    disk: str = ""
    inodes: str = ""
    syscalls: str = ""

    def missing(self) -> dict[str, str]:
        return {name: why for name, why in vars(self).items() if why}


class Box(ABC):
    """One isolated place. Who made or adopted it may speak to its agent and destroy it."""

    def __init__(self, box_id: str) -> None:
        self.id = box_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @abstractmethod
    def agent(self, *, epoch: int = 1, deadman_s: float | None = None) -> BoxAgent:
        """Who answers in this box, to an owner of this epoch. deadman_s: after how long without a
        word from its owner the box is to end by itself."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Whether the box still runs. Raises RuntimeUnavailable where that cannot be told."""

    @abstractmethod
    async def destroy(self) -> None:
        """End the box and all that is in it; returns when it is gone. Destroying twice is
        harmless. Raises RuntimeUnavailable."""


class Runtime(ABC):
    """Makes boxes and finds those it made before. Use as an async context manager."""

    name: str
    has_images: bool = True
    """Whether boxes are made from images: else they have the programs of the machine."""

    @property
    def build(self) -> str:
        """Which agent new boxes get. A warm box that has another is not handed out."""
        return ""

    async def about(self) -> str:
        """What makes the boxes and where, in a few words. Raises RuntimeUnavailable where it does
        not answer."""
        return self.name

    @abstractmethod
    async def create(self, spec: BoxSpec) -> Box:
        """A new running box. Its warden may need a moment before it answers.

        Raises RuntimeUnavailable; leaves nothing behind where it fails or is cancelled.
        """

    @abstractmethod
    async def boxes(self, owner: str) -> list[Box]:
        """Every box of this owner that runs, made by this process or by one before it."""

    @abstractmethod
    async def enforcement(self) -> Enforcement:
        """What is enforced here and what is not."""

    async def __aenter__(self) -> Runtime:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections. Boxes live on."""
