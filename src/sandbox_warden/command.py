"""One command, the followers of its output, and the records of all."""

import json
import os
import signal
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

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
KEPT_BYTES = 8 << 20
KEPT_COMMANDS = 2000
SUMMARIES = 256
"""Most summaries in one answer: they fit into a frame with keys of any length."""
TOLD_ROOM = 400 * 1024
"""Most bytes in one answer of what summaries say besides. Escaped, a text is up to six times as
long."""
KEY_LENGTH = 200


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
        self.overlap: Optional[Timer] = None
        """Starts a spare shell beside it."""
        self.stall: Optional[Timer] = None
        self.deadline: Optional[Timer] = None
        self.timed_out = False
        self.signalled = False
        self.tries = 0
        """How many times more it is tried, if the box has no process left for it."""
        self.waits: Optional[Timer] = None
        """Tries it again."""
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

    def summary(self, *, briefly: bool = False) -> Dict[str, Any]:
        """What a reconnecting server needs to know. briefly: without the call that started it."""
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
            **({} if briefly else self.told),
        }


class Records:
    """Every command by id and by idempotency key. Finished ones are limited: first their output is
    dropped, oldest first, then the records."""

    def __init__(self) -> None:
        self._by_id: Dict[str, Command] = {}
        self._by_key: Dict[str, Command] = {}
        self._done: Deque[Command] = deque()
        self._with_output: Deque[Command] = deque()
        self._kept_bytes = 0
        self.services: Set[str] = set()
        """Ids of processes of ours, which no record tells of."""

    def summaries(self) -> Tuple[List[Dict[str, Any]], bool]:
        """Summaries of the running and the newest ended commands in order of start, and whether
        there are more."""
        newest = list(reversed(self._by_id.values()))
        newest.sort(key=lambda command: command.result is not None)
        told = set(newest[:SUMMARIES])
        found, room = [], TOLD_ROOM
        for command in self._by_id.values():
            if command in told:
                room -= _size(command.told)
                found.append(command.summary(briefly=room < 0))
        return found, len(found) < len(self._by_id)

    def get(self, ident: str) -> Command:
        command = self._by_id.get(ident)
        if command is None:
            raise Refused(
                "command_not_found",
                "no command %s in this session; list its commands to see those there are"
                % ident[:64],
            )
        return command

    def knows(self, ident: bytes) -> bool:
        name = ident.decode("utf-8", "replace")
        return name in self._by_id or name in self.services

    def known(self, ident: str, key: Optional[str], digest: str) -> Optional[Command]:
        """The command that an earlier attempt of the same call started, if any."""
        command = self._by_id.get(ident) or (self._by_key.get(key) if key else None)
        if command is not None and command.digest != digest:
            message = "idempotency_key %.64s was used for another command; use a new key" % (
                key or ident
            )
            raise Refused("idempotency_mismatch", message)
        return command

    def add(self, command: Command) -> None:
        self._by_id[command.ident] = command
        if command.key:
            self._by_key[command.key] = command

    def finished(self, command: Command) -> None:
        self._done.append(command)
        self._with_output.append(command)
        self._kept_bytes += command.log.retained
        while self._kept_bytes > KEPT_BYTES:
            self._forget_output()
        if len(self._done) > KEPT_COMMANDS:
            oldest = self._done.popleft()
            if self._with_output[0] is oldest:
                self._forget_output()
            del self._by_id[oldest.ident]
            if oldest.key:
                self._by_key.pop(oldest.key, None)

    def _forget_output(self) -> None:
        oldest = self._with_output.popleft()
        self._kept_bytes -= oldest.log.retained
        oldest.log.forget()


class Totals:
    def __init__(self) -> None:
        self._commands = 0
        self._running: Set[Command] = set()
        self._seconds = 0.0
        self._bytes_in = self._bytes_out = 0

    def begin(self, command: Command) -> None:
        self._commands += 1
        self._running.add(command)

    def end(self, command: Command) -> None:
        """No-op for one that does not count."""
        if command in self._running:
            self._running.discard(command)
            self._seconds += command.age_s
            self._bytes_in += _received(command)
            self._bytes_out += command.log.size

    def read(self) -> Dict[str, int]:
        """With what those that run have used so far."""
        running = list(self._running)
        seconds = self._seconds + sum(each.age_s for each in running)
        return {
            "commands": self._commands,
            "command_ms": int(seconds * 1000),
            "bytes_in": self._bytes_in + sum(map(_received, running)),
            "bytes_out": self._bytes_out + sum(each.log.size for each in running),
        }


def _size(told: Dict[str, Any]) -> int:
    """In an answer."""
    return len(json.dumps(told, ensure_ascii=False).encode("utf-8", "surrogatepass")) if told else 0


def _received(command: Command) -> int:
    return 0 if command.stdin is None else command.stdin.received
