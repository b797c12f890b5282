"""How volumes are stored: what disks.py and folders.py have in common."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox_sdk.protocol.models import VolumeMode, VolumeMount
from sandbox_server.runtime.base import BoxVolume


@dataclass(frozen=True, kw_only=True)
class StoredVolume:
    name: str
    size: int
    used: int
    made_at: float


class InUse(Exception):
    """A box has the volume in a way that leaves no room."""

    def __init__(self, thread_id: str, mode: VolumeMode) -> None:
        super().__init__(thread_id, mode)
        self.thread_id = thread_id
        self.mode = mode


class VolumeStore(Protocol):
    """Volumes of one tenant, in a folder. All of it blocks, and is called by one at a time, also of
    several processes. Raises OSError."""

    about: str
    """For people."""

    def names(self, folder: Path) -> list[str]: ...

    def look(self, folder: Path, name: str) -> StoredVolume: ...

    def make(self, folder: Path, name: str, size: int) -> None:
        """It appears once it is complete."""

    def attach(
        self, folder: Path, mount: VolumeMount, thread_id: str, held: contextlib.ExitStack
    ) -> BoxVolume:
        """What a box of a thread can mount. held: closes what has to be open until then. Raises
        InUse.

        A thread whose box is replaced may have a volume twice: the box that goes does so once the
        new one is there.
        """

    def remove(self, folder: Path, name: str) -> None:
        """Raises InUse."""
