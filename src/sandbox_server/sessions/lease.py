"""The lease: the right of a worker to serve, and the number that fences whoever had it before."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from sandbox_sdk.protocol.errors import RuntimeUnavailable


class Lease(Protocol):
    """Held while a worker runs. `epoch` is higher than that of any holder before."""

    @property
    def worker(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def draining(self) -> bool:
        """Whether the worker is to take no new sessions."""

    def check(self) -> None:
        """Raises RuntimeUnavailable where the right to serve has lapsed."""


class LoneLease:
    """The lease of a worker that shares its sessions with nobody: it never lapses."""

    def __init__(self, worker: str, epoch: int) -> None:
        self.worker = worker
        self.epoch = epoch
        self.draining = False

    def check(self) -> None:
        """Nobody else could serve instead."""


def lock(folder: Path, owner: str) -> int | None:
    """A descriptor that holds the lock of this name as long as it is open; None where another
    process on this machine holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / f"{owner}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


@contextlib.contextmanager
def alone(folder: Path, owner: str) -> Iterator[None]:
    """Two servers of one name would take each other's boxes. Raises RuntimeUnavailable."""
    fd = lock(folder, owner)
    if fd is None:
        raise RuntimeUnavailable(
            f"another server named {owner} uses {folder}; stop it, or set SANDBOX_WORKER_ID"
        )
    try:
        yield
    finally:
        os.close(fd)
