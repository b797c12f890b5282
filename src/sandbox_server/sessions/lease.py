"""The lease: the right of a worker to serve, and the number that fences whoever had it before."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.private import private_file, private_folder


@dataclass(frozen=True)
class Load:
    """How much a worker has to do."""

    sessions: int = 0
    warm: int = 0


class Lease(Protocol):
    """Held while a worker runs. `epoch` is higher than that of any holder before."""

    @property
    def worker(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def draining(self) -> bool:
        """Whether the worker is to take no new sessions."""

    @property
    def leaves(self) -> bool:
        """Whether nobody will take over from this worker."""

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """From now on threads may come. `on_gap` is awaited when the lease was lost and won again,
        or may have been forgotten, and again until it succeeds; `load` tells how much there is to
        do."""

    def check(self) -> None:
        """Raises RuntimeUnavailable where the right to serve has lapsed."""


class LoneLease:
    """The lease of a worker that shares its sessions with nobody: it never lapses."""

    def __init__(self, worker: str, epoch: int) -> None:
        self.worker = worker
        self.epoch = epoch
        self.draining = False
        self.leaves = False

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """No-op: a standalone worker shares nothing."""

    def check(self) -> None:
        """No-op: the lease of a standalone worker never lapses."""


class AlreadyRunning(RuntimeUnavailable):
    """Another process has the name."""


_held: set[int] = set()
"""The locks of this process."""


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Two servers of one name would take each other's boxes. Raises AlreadyRunning, and
    RuntimeUnavailable where the folder cannot be used."""
    path = folder / f"{name}.lock"
    try:
        private_folder(folder)
        private_file(path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        raise RuntimeUnavailable(
            f"the state folder {folder} cannot be used ({exc.strerror}): set SANDBOX_STATE_DIR to a"
            " folder of your own"
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise AlreadyRunning(
            f"another server named {name} uses {folder}; stop it, or set SANDBOX_WORKER_ID"
        ) from None
    _held.add(fd)
    try:
        yield
    finally:
        _held.discard(fd)
        os.close(fd)


def _let_go_after_fork() -> None:
    """A child shares the locks of its parent, and would keep them when the parent ends."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_after_fork)
