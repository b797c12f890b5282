"""Input for a command: counted here, so that a piece that is sent again is not written twice."""

from __future__ import annotations

import contextlib
import time

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.e2b.command import E2bCommand
from sandbox_server.runtime.e2b.processes import Processes

_PIECE = 64 * 1024
_UNREAD_S = 10.0
"""How long a call waits for a command that does not read."""


class Input:
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
