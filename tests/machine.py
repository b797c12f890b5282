"""What the tests share with every process of this run and of others on the machine, because the
machine has it but once."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Machine:
    """Lets tests that exhaust something of the machine run while none that needs it does."""

    def __init__(self, name: str) -> None:
        # Not the run's own temporary folder.
        shared = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        folder = Path(shared, f"agent-sandbox-tests-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
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
