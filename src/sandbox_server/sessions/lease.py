"""The lease: a worker's right to serve, with an epoch that fences earlier holders."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.private import lock_file, private_folder, unlock_file


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


@dataclass
class LoneLease:
    """The lease of a standalone worker: it never lapses."""

    worker: str
    epoch: int
    was_away: bool = False
    draining: bool = False
    leaves: bool = False

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """No-op: a standalone worker shares nothing."""

    def check(self) -> None:
        """No-op: the lease of a standalone worker never lapses."""


class AlreadyRunning(RuntimeUnavailable):
    """Another process uses this worker id."""


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Lock a worker id: two servers with one id would take each other's boxes. Raises
    AlreadyRunning, and RuntimeUnavailable if the folder cannot be used."""
    path = folder / f"{name}.lock"
    try:
        private_folder(folder)
        fd = lock_file(path)
    except BlockingIOError:
        raise AlreadyRunning(
            f"another server named {name} uses {folder}; stop it, or set SANDBOX_WORKER_ID"
        ) from None
    except OSError as exc:
        raise RuntimeUnavailable(
            f"the state folder {folder} cannot be used ({exc.strerror}): set SANDBOX_STATE_DIR to a"
            " folder this user can write to"
        ) from None
    try:
        yield
    finally:
        unlock_file(fd)
