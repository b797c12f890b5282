"""One command in an E2B sandbox: its output so far, its followers, its end, and its input."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import (
    CommandResult,
    CommandSummary,
    Event,
    Gap,
    KeptOutput,
    Output,
    Started,
    StreamName,
)
from sandbox_server.runtime.e2b.processes import Processes
from sandbox_warden.output import STDERR, STDOUT, OutputLog

TIMED_OUT = 124
KILLED = 137
_NAMES: dict[int, StreamName] = {STDOUT: "stdout", STDERR: "stderr"}
_PIECE = 64 * 1024
"""Of output, and of input."""
_UNREAD_S = 10.0
"""How long a call waits for a command that does not read."""
_HELD_S = 10.0
"""How long a slow follower holds up a command, as in other boxes."""
_SIGNALS = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
    10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ",
    31: "SYS",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Call:
    """What was asked for."""

    text: str
    command_id: str
    digest: str
    key: str | None = None
    timeout_s: float | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    stdin_open: bool = False
    output_limit: int
    own: bool = False

    @property
    def has_input(self) -> bool:
        return self.stdin is not None or self.stdin_open


class E2bCommand:
    """Kept after its end, for callers that ask again."""

    def __init__(self, call: Call, mark: str) -> None:
        self.call = call
        self.id = call.command_id
        self.mark = mark
        self.pid = 0
        """Of its launcher, once it has begun."""
        self.shell_pid = 0
        self.log = OutputLog(call.output_limit)
        self.began = asyncio.Event()
        """Its shell has begun, or it failed."""
        self.over = asyncio.Event()
        self.result: CommandResult | None = None
        self.failure: errors.SandboxError | None = None
        self.timed_out = False
        self.received = 0
        """Bytes of input."""
        self.input_ended = not call.stdin_open
        self.input_lock = asyncio.Lock()
        self._started = time.monotonic()
        self._changed = asyncio.Event()
        self._followers: dict[object, int] = {}
        """Where each is in the output."""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def add(self, stream: int, data: bytes) -> None:
        self.log.append(stream, data)
        self._wake()

    def begin(self, pid: int, shell_pid: int) -> None:
        self.pid, self.shell_pid = pid, shell_pid
        self.began.set()

    def end(self, *, exit_code: int, cwd: str, saved: bool = False, killed: bool = False) -> None:
        by_signal = exit_code > 128 and (killed or not saved)
        self.result = CommandResult(
            command_id=self.id,
            exit_code=TIMED_OUT if self.timed_out else exit_code & 255,
            signal=_SIGNALS.get(exit_code - 128) if by_signal else None,
            reason="timeout" if self.timed_out else None,
            timed_out=self.timed_out,
            duration_ms=round(self.age_s * 1000, 3),
            output_bytes=self.log.size,
            cwd=cwd,
            state_saved=saved and not self.timed_out,
        )
        self._close()

    def fail(self, error: errors.SandboxError) -> None:
        self.failure = error
        self._close()

    def _close(self) -> None:
        self.input_ended = True
        self.began.set()
        self.over.set()
        self._wake()

    async def room(self) -> None:
        """Wait for followers that are far behind, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HELD_S):
                while self._lag() > self.log.half // 2:
                    await self._changed.wait()

    async def read(self) -> None:
        """Wait until followers have all of the output, but not for long: it is trimmed then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HELD_S):
                while self._lag() > 0:
                    await self._changed.wait()
        self.log.settle()

    def _lag(self) -> int:
        return max((self.log.size - at for at in self._followers.values()), default=0)

    async def follow(self, offset: int) -> AsyncGenerator[Event]:
        """Raises the failure of a command that failed."""
        await self.began.wait()
        if self.pid:
            yield Started(command_id=self.id, stdin_received=self.received, pid=self.shell_pid)
        me = object()
        self._followers[me] = offset
        try:
            while True:
                for event in self._next(self._followers[me]):
                    self._followers[me] = _end_of(event)
                    yield event
                    self._wake()
                if self._followers[me] < self.log.size:
                    continue
                if self.failure is not None:
                    raise self.failure
                if self.result is not None:
                    yield self.result
                    return
                await self._changed.wait()
        finally:
            del self._followers[me]
            self._wake()

    def kept(self) -> KeptOutput:
        found, offset = KeptOutput(2 * self.log.half * 2 + _PIECE), 0
        while offset < self.log.size:
            for event in self._next(offset):
                found.add(event)
                offset = _end_of(event)
        return found

    def standing(self, cwd: str) -> CommandResult:
        """How it stands now, with the output so far. Raises its failure."""
        if self.failure is not None:
            raise self.failure
        found = self.result or CommandResult(
            command_id=self.id,
            exit_code=None,
            signal=None,
            reason=None,
            timed_out=False,
            duration_ms=round(self.age_s * 1000, 3),
            output_bytes=self.log.size,
            cwd=cwd,
            state_saved=False,
        )
        return found.model_copy().with_output(self.kept())

    def summary(self) -> CommandSummary:
        running = not self.over.is_set()
        return CommandSummary(
            command_id=self.id,
            idempotency_key=self.call.key,
            running=running,
            exit_code=None if self.result is None else self.result.exit_code,
            age_s=self.age_s,
            output_bytes=self.log.size,
            late_bytes=0,
            pid=self.shell_pid or None if running else None,
            text=self.call.text[:4096] if running else None,
            cwd=self.call.cwd if running else None,
            env=self.call.env if running else None,
        )

    def _next(self, offset: int) -> Iterator[Output | Gap]:
        piece = self.log.read(offset, _PIECE)
        if piece is None:
            if offset < self.log.size:
                yield Gap(start=offset, end=self.log.size)
            return
        start, stream, data = piece
        if start > offset:
            yield Gap(start=offset, end=start)
        yield Output(_NAMES[stream], start, data)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _end_of(event: Output | Gap) -> int:
    return event.end if isinstance(event, Gap) else event.offset + len(event.data)


class Input:
    """Counted here, so that a piece that is sent again is not written twice."""

    def __init__(self, processes: Processes, command: E2bCommand) -> None:
        self._processes = processes
        self._command = command

    async def begin(self) -> None:
        """Send what was given with the call. A command may read it as slowly as it likes."""
        command, given = self._command, self._command.call.stdin
        assert given is not None
        await command.began.wait()
        async with command.input_lock:
            for at in range(0, len(given), _PIECE):
                piece = given[at : at + _PIECE]
                while not command.over.is_set() and not await self._taken(piece):
                    pass
                command.received += len(piece)
            if not command.call.stdin_open and not command.over.is_set():
                await self._processes.close_stdin(command.pid)

    async def _taken(self, piece: bytes) -> bool:
        began = time.monotonic()
        try:
            await self._processes.send(self._command.pid, piece, within_s=_UNREAD_S)
        except errors.RuntimeUnavailable:
            if time.monotonic() - began < _UNREAD_S:
                raise
            return False
        return True

    async def send(self, data: bytes, *, offset: int | None, end: bool) -> int:
        """Returns the total of all input. Raises StdinClosed, InvalidRequest for a hole, Capacity
        if the command does not read."""
        command = self._command
        self._check_open()
        async with command.input_lock:
            if offset is not None:
                if offset > command.received:
                    raise errors.InvalidRequest(
                        f"stdin has received {command.received} bytes: offset {offset} would leave"
                        " a hole"
                    )
                data = data[command.received - offset :]
            if data and command.input_ended:
                raise errors.StdinClosed("its stdin is closed and takes no more input")
            for at in range(0, len(data), _PIECE):
                await self._send_piece(data[at : at + _PIECE])
            if end and not command.input_ended:
                command.input_ended = True
                with contextlib.suppress(errors.NotFound):
                    await self._processes.close_stdin(command.pid)
            return command.received

    def _check_open(self) -> None:
        if not self._command.call.stdin_open:
            raise errors.StdinClosed(
                f"command {self._command.id} takes no input: it was started without stdin_open"
            )

    async def _send_piece(self, piece: bytes) -> None:
        command = self._command
        try:
            if not await self._taken(piece):
                raise errors.Capacity(
                    f"command {command.id} does not read its input: {len(piece)} bytes waited for"
                    f" {_UNREAD_S:g} s; send them again later",
                    retry_after_s=1,
                )
        except errors.NotFound:
            command.input_ended = True
            raise errors.StdinClosed("its stdin is closed and takes no more input") from None
        command.received += len(piece)
