"""The zygote: a process with the warden already imported, from which boxes are forked.

Starting a Python, importing the warden and running bubblewrap took nine tenths of a box's start.
Forked boxes also share the memory of what they have in common.
"""

from __future__ import annotations

import array
import contextlib
import socket
import subprocess
import threading
from pathlib import Path

from sandbox_server.runtime.bubblewrap.setup import Setup

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_STOP_S = 5.0


class Zygote:
    """Started with the first box, and again if it has ended. Thread-safe."""

    # The paths come in the environment: boxes can read the command line of their warden.
    program = (
        "import os, sys;"
        " sys.path[:0] = [os.environ.pop('WARDEN'), os.environ.pop('CODE')];"
        " import zygote_process"
    )

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<Zygote {self._process.pid if self._process else 'not started'}>"

    def fork(self, plan: str, fds: list[int]) -> None:
        """Fork a bare box. plan: the path of its BarePlan. fds: its listening socket, the pipe for
        its startup errors, and its channel. Raises OSError."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        message = ([plan.encode()], [rights])
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(ConnectionError):
                    self._socket.sendmsg(*message)
                    return
                self._stop()
            self._start().sendmsg(*message)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [self._setup.python.executable, "-I", "-S", "-c", self.program],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={
                    **_ENVIRONMENT,
                    "WARDEN": f"{self._setup.shared}/warden",
                    "CODE": str(Path(__file__).parent),
                },
                start_new_session=True,
            )
        self._socket = ours
        return ours

    def close(self) -> None:
        """End the process. Boxes stay. Idempotent."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._socket is None or self._process is None:
            return
        self._socket.close()
        self._socket = None
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
