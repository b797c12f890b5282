"""The lease: a worker's right to serve, with an epoch that fences earlier holders."""

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
    """A worker's current load."""

    sessions: int = 0
    warm: int = 0


class Lease(Protocol):
    """Held while a worker runs. `epoch` is higher than that of any earlier holder."""

    @property
    def worker(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def was_away(self) -> bool:
        """Whether it was not held for a while before this epoch, so that others may have taken over
        what the worker had."""

    @property
    def draining(self) -> bool:
        """Whether the worker must not take new sessions."""

    @property
    def leaves(self) -> bool:
        """Whether the worker leaves for good, with no successor."""

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """Accept threads from now on. `on_gap` is awaited after the lease was lost and reacquired,
        or the registry may have lost data, and repeated until it succeeds. `load` is published."""

    def check(self) -> None:
        """Raises RuntimeUnavailable if the lease has lapsed."""


class LoneLease:
    """The lease of a standalone worker: it never lapses."""

    def __init__(self, worker: str, epoch: int) -> None:
        self.worker = worker
        self.epoch = epoch
        self.was_away = False
        self.draining = False
        self.leaves = False

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """No-op: a standalone worker shares nothing."""

    def check(self) -> None:
        """No-op: the lease of a standalone worker never lapses."""


class AlreadyRunning(RuntimeUnavailable):
    """Another process uses this worker id."""


_held: set[int] = set()
"""File descriptors of the locks this process holds."""


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Lock a worker id: two servers with one id would take each other's boxes. Raises
    AlreadyRunning, and RuntimeUnavailable if the folder cannot be used."""
    path = folder / f"{name}.lock"
    try:
        private_folder(folder)
        private_file(path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as exc:
        raise RuntimeUnavailable(
            f"the state folder {folder} cannot be used ({exc.strerror}): set SANDBOX_STATE_DIR to a"
            " folder this user can write to"
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


def _unlock_after_fork() -> None:
    """Close the locks in a forked child, which would keep them after the parent ends."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_unlock_after_fork)
