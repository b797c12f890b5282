"""One command and the followers of its output."""

import os
import signal
import time
from typing import Any, Callable, Dict, Optional, Set, Tuple

from .errors import Refused
from .loop import Timer
from .marks import file_clock
from .nursery import Nursery
from .output import OutputLog
from .shell import Shell
from .stdin import Keys, Size, Stdin, resize

_SIGNALS = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
    10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ",
    31: "SYS",
}  # fmt: skip


def exit_of(status: int) -> Tuple[int, Optional[str]]:
    """The exit code a shell would report for a wait status, and its signal, if any."""
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status), None
    number = os.WTERMSIG(status)
    return 128 + number, _SIGNALS.get(number, str(number))


class Follower:
    """A reader of a command's output: as it comes if `live`, else at the end."""

    def __init__(self, command: "Command", offset: int, *, live: bool) -> None:
        self.command = command
        self.cursor = offset
        self.live = live
        self.lossy = False
        command.followers.add(self)

    def wake(self) -> None:
        """There is something to read."""
        raise NotImplementedError

    def lag(self) -> int:
        return self.command.log.size - self.cursor


class Command:
    """One command; kept after its end, for servers that reconnect."""

    def __init__(self, ident: str, digest: str, log: OutputLog, started: float) -> None:
        self.ident = ident
        self.digest = digest
        self.key: Optional[str] = None
        self.cwd: Optional[str] = None
        self.pid = 0
        """Of its shell, once that is known, while it runs."""
        self.told: Dict[str, Any] = {}
        """What its summary says besides, while it runs."""
        self.log = log
        self.started = self.touched = started
        """When it began, and when something was last typed or shown in its terminal."""
        self.started_at = file_clock()
        self.call: Optional[Callable[[Shell], None]] = None
        self.nursery: Optional[Nursery] = None
        self.pipes: Dict[int, int] = {}
        self.left: Optional[Dict[int, int]] = None
        """Bytes by pipe that were there when it ended and are still to be read."""
        self.status: Optional[int] = None
        self.saved = b""
        """What its shell wrote of its state."""
        self.special = False
        """Whether it may change its shell such that that cannot go on."""
        self.goes_on = False
        """Whether its shell waits for the next command."""
        self.oom_before: Optional[int] = None
        self.timer: Optional[Timer] = None
        self.left_s: Optional[float] = None
        """Of its time limit, while the box is paused."""
        self.stall: Optional[Timer] = None
        self.deadline: Optional[Timer] = None
        self.timed_out = False
        self.signalled = False
        self.shells = 0
        """Shells that ended before they began the command."""
        self.refused: Optional[Refused] = None
        self.paused = False
        self.hurried = False
        self.stdin: Optional[Stdin] = None
        self.terminal: Optional[Size] = None
        self.keys: Optional[Keys] = None
        """The size of its terminal, if it has one."""
        self.interactive = False
        """Whether somebody types commands in its terminal."""
        self.followers: Set[Follower] = set()
        self.result: Optional[Dict[str, Any]] = None
        self.on_end: Optional[Callable[[Dict[str, Any]], None]] = None
        """Of a process of ours, which is not the user's command: called with its result."""
        self.on_signal: Optional[Callable[[int], None]] = None
        """Of a cell, which has no process of its own."""
        self.tells_changes = False
        """Whether its result says if it left all files as they were."""
        self.late_bytes = 0
        """Output of background children after the end: read so that they go on, not kept."""

    @property
    def marker(self) -> bytes:
        """The entry in the environment of every process it started."""
        return b"SANDBOX_COMMAND_ID=%s" % self.ident.encode()

    @property
    def has_begun(self) -> bool:
        """Whether it has got a shell, or a kernel. It may be over by now."""
        return bool(self.pid) or self.on_signal is not None or self.result is not None

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    def wake(self, *, live: bool = False) -> None:
        """Tell its followers that there is something to read. live: those who read as it comes."""
        for follower in list(self.followers):
            if follower.live or not live:
                follower.wake()

    def wrote(self, stream: int, data: bytes) -> None:
        self.log.append(stream, data)
        self.wake(live=True)

    def resize(self, size: Size) -> None:
        """Raises Refused if it has no terminal. Does nothing after its end."""
        if self.terminal is None:
            message = "command %s has no terminal: start it with pty" % self.ident
            raise Refused("invalid_request", message)
        self.terminal = size
        for fd in self.pipes:
            resize(fd, size)
        if self.pipes and self.keys is not None:
            self.keys.send(signal.SIGWINCH)

    def standing(self, *, output_bytes: int, cwd: str, **ended: Any) -> Dict[str, Any]:
        """Its current status; `ended` has the additional fields of one that has ended."""
        return {
            "command_id": self.ident,
            "exit_code": None,
            "signal": None,
            "reason": None,
            "timed_out": False,
            "duration_ms": round(self.age_s * 1000, 3),
            "output_bytes": output_bytes,
            "cwd": cwd,
            "state_saved": False,
            **ended,
        }

    def summary(self) -> Dict[str, Any]:
        """What a reconnecting server needs to know."""
        return {
            "command_id": self.ident,
            "idempotency_key": self.key,
            "running": self.result is None,
            "exit_code": None if self.result is None else self.result["exit_code"],
            "is_code": self.on_signal is not None,
            "pty": None if self.terminal is None else list(self.terminal),
            "age_s": round(self.age_s, 3),
            "output_bytes": self.log.size,
            "late_bytes": self.late_bytes,
            "pid": self.pid or None,
            **self.told,
        }
