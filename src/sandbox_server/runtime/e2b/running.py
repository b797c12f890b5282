"""What happens to a command between its start and its end: output is taken in, a stream that breaks
is opened again, its time runs out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol import errors
from sandbox_server.runtime.e2b.command import KILLED, E2bCommand
from sandbox_server.runtime.e2b.output_marks import MarkedStream, stream_mark
from sandbox_server.runtime.e2b.processes import Begun, Ended, Piece, Processes, ProcessEvent
from sandbox_warden.output import STDERR, STDOUT

log = structlog.get_logger(__name__)

BROKEN = b"\nsandbox: the connection to this sandbox broke; output may be missing here\n"
EARLIER = b"sandbox: the server was restarted; what this command wrote before is not available\n"
_DEAD_S = 10.0
"""How long after a kill the launcher may take to tell the end."""


@dataclass(frozen=True)
class Refused:
    """The launcher did not run the command."""

    why: str
    details: list[str]


class CommandStream:
    """Takes in the events of a command."""

    def __init__(self, command: E2bCommand) -> None:
        self._command = command
        mark = stream_mark(command.mark)
        self._streams = {name: MarkedStream(mark) for name in ("stdout", "stderr", "pty")}
        self._ends: set[str] = set()
        self._pid = 0
        self.refused: Refused | None = None
        self.ending: list[str] | None = None
        """Exit code, whether the state was saved, whether it was killed, CPU time of the user and
        the system, folder."""
        self.exited = False

    @property
    def over(self) -> bool:
        whole = {"pty"} if self._command.call.pty is not None else {"stdout", "stderr"}
        return self.exited or self.refused is not None or self._ends >= whole

    def take(self, event: ProcessEvent) -> None:
        if isinstance(event, Begun):
            self._pid = event.pid
        elif isinstance(event, Ended):
            self.exited = True
            for name, stream in self._streams.items():
                self._write(name, stream.rest())
        elif event.stream not in self._ends:
            output, lines = self._streams[event.stream].feed(event.data)
            self._write(event.stream, output)
            for line in lines:
                self._told(event.stream, line)

    def _write(self, name: str, data: bytes) -> None:
        self._command.add(STDERR if name == "stderr" else STDOUT, data)

    def _told(self, stream: str, line: str) -> None:
        word, *rest = line.split(" ", 6)
        if word == "begun":
            shell = rest[0] if rest else ""
            self._command.begin(self._pid, int(shell) if shell.isdecimal() else self._pid)
        elif word == "ended":
            self.ending = rest
            self._ends.add(stream)
        elif word == "":
            self._ends.add(stream)
        else:
            self.refused = Refused(word, rest)


class Runner:
    """Runs the commands of one box until their end is known."""

    def __init__(
        self,
        processes: Processes,
        *,
        recorded: Callable[[str], Awaitable[int | None]],
        signal: Callable[[E2bCommand, int], Awaitable[None]],
        ended: Callable[[E2bCommand, list[str] | None], None],
    ) -> None:
        """recorded: the exit code that a command left in the sandbox; None while it runs. Raises
        NotFound if it never began. ended: called with what the launcher told at the end."""
        self._processes = processes
        self._recorded = recorded
        self._signal = signal
        self._ended = ended

    async def run(
        self, command: E2bCommand, events: AsyncGenerator[ProcessEvent]
    ) -> Refused | None:
        """Take in all of the output. Returns why the command was not run, if it was not."""
        stream = CommandStream(command)
        backoff = Backoff(0.1, 1.0, 30.0)
        while True:
            try:
                await self._take_in(command, stream, events)
                return await self._finish(command, stream)
            except errors.RuntimeUnavailable as exc:
                pause_s = backoff.pause_s(time.monotonic())
                if pause_s is None or not command.pid:
                    raise
                log.warning("e2b.stream_broken", command=command.id, why=exc.message)
                command.add(STDERR, BROKEN)
            except errors.NotFound:  # It ended while nobody listened.
                return await self._finish(command, stream)
            await asyncio.sleep(pause_s)
            events = self._processes.follow(command.pid)

    async def _take_in(
        self, command: E2bCommand, stream: CommandStream, events: AsyncGenerator[ProcessEvent]
    ) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                stream.take(event)
                if stream.over:
                    return
                if isinstance(event, Piece):
                    await command.room()

    async def _finish(self, command: E2bCommand, stream: CommandStream) -> Refused | None:
        if stream.refused is not None:
            return stream.refused
        await command.read()
        if stream.ending is None and not command.timed_out:
            code = await self._recorded(command.id)
            stream.ending = [str(KILLED if code is None else code), "no", "no"]
        self._ended(command, stream.ending)
        return None

    async def expire(self, command: E2bCommand) -> None:
        """Wait for the end of its time, then kill everything it has started."""
        assert command.call.timeout_s is not None
        await command.began.wait()
        await self._over(command, within_s=command.call.timeout_s)
        if command.over.is_set():
            return
        command.timed_out = True
        with contextlib.suppress(errors.SandboxError):
            await self._signal(command, 9)
            await self._over(command, within_s=_DEAD_S)
            if not command.over.is_set():
                await self._processes.kill(command.pid)
                await self._over(command, within_s=_DEAD_S)
        if not command.over.is_set():
            self._ended(command, None)

    async def _over(self, command: E2bCommand, *, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await command.over.wait()
