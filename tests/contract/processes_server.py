"""`sandbox serve --processes`, for as many tests as there are."""

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Self

from tests.preloaded import start_server
from tests.run import run_owner

_TENANTS = 500


class ProcessesServer:
    """Use as a context manager. It ends with all its boxes."""

    def __init__(self, state_dir: Path, *, count: int) -> None:
        self.state_dir = state_dir
        self.name = run_owner(f"processes-{os.getpid()}")
        self.url = ""
        self._numbers = itertools.count()
        self._settings = {
            "SANDBOX_RUNTIME": "bubblewrap",
            "SANDBOX_STATE_DIR": str(state_dir),
            "SANDBOX_WORKER_ID": self.name,
            "SANDBOX_PORT": "0",
            "SANDBOX_PROCESSES": str(count),
            "SANDBOX_API_KEYS": ",".join(f"tenant-{n}:key-{n}" for n in range(_TENANTS)),
            "SANDBOX_MAX_SESSIONS": "3",
            "SANDBOX_MAX_UPLOAD": "8m",
            "SANDBOX_MAX_MEMORY": "1g",
            "SANDBOX_MAX_CPUS": "2",
            "SANDBOX_MAX_PIDS": "512",
            "SANDBOX_MAX_DISK": "2g",
            "SANDBOX_ARTIFACT_QUOTA": "4m",
            "SANDBOX_VOLUME_SIZE": "32m",
            "SANDBOX_VOLUME_QUOTA": "128m",
            "SANDBOX_POOL_SIZE": "0",
            "SANDBOX_DESTROY_ON_EXIT": "1",
        }

    def next_tenant(self) -> int:
        """The number of a tenant that no test has used."""
        return next(self._numbers)

    def __enter__(self) -> Self:
        log = self.state_dir / f"{self.name}.log"
        read, write = os.pipe()
        with log.open("wb") as stderr, open(read) as told:
            with open(write, "wb") as stdout:
                env = {**os.environ, **self._settings}
                self._process = start_server(["--json"], env, stdout=stdout, stderr=stderr)
            line = told.readline()
        assert line, log.read_text()
        self.url = json.loads(line)["url"]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.join(60)
