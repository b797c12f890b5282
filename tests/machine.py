"""What the tests share with every process of a run because the machine has it but once."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Machine:
    """Lets tests that exhaust something of the machine run while none that needs it does."""

    def __init__(self, folder: Path, name: str = "machine") -> None:
        self._turn = folder / f"{name}.turn"
        self._lock = folder / f"{name}.lock"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else begins while we wait, so that the wait has an end."""
        with self._turn.open("w") as turn, self._lock.open("w") as lock:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._lock.open("w") as lock:
            with self._turn.open("w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield
