"""Host processes, identified so that a reused pid is never mistaken for the original."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_STOP_S = 1.0


@dataclass(frozen=True)
class Process:
    """A process, identified by its pid and its start time in ticks since boot."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether it still runs. Reaps it if it is an ended child of ours."""
        found = _stat(self.pid)
        if found is None or found.started != self.started:
            return False
        if found.state not in "ZX":
            return True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return False

    def open(self) -> int | None:
        """A pidfd of exactly this process; None if it has ended."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.alive():
            return pidfd
        os.close(pidfd)
        return None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> bool:
        """Send SIGSTOP and wait until it has stopped. False if it is gone."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_S
        while (found := _stat(self.pid)) is not None and found.started == self.started:
            if found.state in "Tt" or (found.state == "D" and time.monotonic() > deadline):
                return True
            if found.state in "ZX":
                return False
            time.sleep(0.001)
        return False

    def _signal(self, number: signal.Signals) -> None:
        pidfd = self.open()
        if pidfd is not None:
            try:
                signal.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                pass
            finally:
                os.close(pidfd)

    def children(self) -> list[Process]:
        if not self.alive():
            return []
        return [
            Process(pid, found.started)
            for pid in _possible_children(self.pid)
            if (found := _stat(pid)) is not None and found.parent == self.pid
        ]

    async def ended(self, *, within_s: float) -> bool:
        """Wait for its end; False on a timeout."""
        pidfd = self.open()
        if pidfd is None:
            return True
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(pidfd, gone.set)
        try:
            async with asyncio.timeout(within_s):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return not self.alive()


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    started: int


def _possible_children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # This kernel has no such file: consider all processes.
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [int(word) for word in text.split()]


def _stat(pid: int) -> _Stat | None:
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name is in parentheses and may itself contain parentheses.
    fields = data.rpartition(b")")[2].split()
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[19]))
