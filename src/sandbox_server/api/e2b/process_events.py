"""The events of our commands as those of process.Process."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, ClassVar

from sandbox_sdk.protocol.events import ExitEvent, GapEvent, OutputEvent, StartEvent
from sandbox_sdk.protocol.models import CommandInfo
from sandbox_server.api.e2b.errors import DeadlineExceeded

_SIGNALS = {
    "KILL": "killed", "TERM": "terminated", "INT": "interrupt", "HUP": "hangup", "QUIT": "quit",
    "USR1": "user defined signal 1", "USR2": "user defined signal 2", "SEGV": "segmentation fault",
    "ABRT": "aborted", "PIPE": "broken pipe", "ALRM": "alarm clock", "BUS": "bus error",
    "FPE": "floating point exception", "ILL": "illegal instruction",
    "XCPU": "CPU time limit exceeded",
}  # fmt: skip
"""As e2b's sandboxes call them."""
_BY_SIGNAL = -1


class EventFrames:
    """Messages for the events of one process."""

    KEEP_ALIVE: ClassVar[dict[str, Any]] = {"event": {"keepalive": {}}}

    def __init__(self, *, pty: bool) -> None:
        self._pty = pty
        self._pid: int | None = None

    def begin(self, info: CommandInfo) -> None:
        """For a process that was started before: its first message comes with the first event."""
        self._pty = info.pty is not None
        self._pid = pid_of(info.pid, info.command_id)

    def of(self, event: object) -> Iterator[dict[str, Any]]:
        """Raises DeadlineExceeded."""
        match event:
            case StartEvent():
                pid = self._pid or pid_of(event.pid, event.command_id)
                yield {"event": {"start": {"pid": pid}}}
            case OutputEvent():
                name = "pty" if self._pty else event.event
                yield _data(name, event.raw())
            case GapEvent():
                lost = f"\n[{event.next_offset - event.offset} bytes of output were not kept]\n"
                yield _data("pty" if self._pty else "stderr", lost.encode())
            case ExitEvent():
                yield {"event": {"end": _end(event)}}


def pid_of(pid: int | None, command_id: str) -> int:
    """The process id; for a box that does not tell it a number that stands for the command."""
    return pid or zlib.crc32(command_id.encode()) or 1


def _data(name: str, data: bytes) -> dict[str, Any]:
    return {"event": {"data": {name: b64encode(data).decode()}}}


def _end(event: ExitEvent) -> dict[str, Any]:
    if event.timed_out:
        raise DeadlineExceeded("the command was ended: its timeout was over")
    if event.signal:
        name = event.signal.removeprefix("SIG")
        status = f"signal: {_SIGNALS.get(name, name)}"
        why = f"{status} ({event.reason})" if event.reason else status
        return {"exitCode": _BY_SIGNAL, "exited": False, "status": status, "error": why}
    status = f"exit status {event.exit_code}"
    error = {"error": status} if event.exit_code else {}
    return {"exitCode": event.exit_code, "exited": True, "status": status, **error}
