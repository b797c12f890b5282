"""A command in the background: see its state, wait for it, send it input, end it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio

from sandbox_sdk.background import Background
from sandbox_sdk.blocking import Blocking, blocking, iterating
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    CommandInfo,
    ExecuteResult,
    OutputEncoding,
    SignalName,
    StdinReceipt,
    Target,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes


class AsyncProcess:
    """A command that runs in the background of a sandbox, with or without this object.

    To come back to it, also from another process: `client.process(command_id)`.
    """

    def __init__(self, sandboxes: Sandboxes, target: Target, command_id: str) -> None:
        self.command_id = command_id
        self._sandboxes = sandboxes
        self._target = target

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.command_id}>"

    async def result(self) -> ExecuteResult:
        """Its state, with the output kept so far; `exit_code` is None while it runs."""
        return await self._sandboxes.result(self._target, self.command_id)

    async def output(self) -> str:
        """The output kept so far."""
        return (await self.result()).output

    async def stream(
        self, *, offset: int = 0, encoding: OutputEncoding = "utf-8"
    ) -> AsyncGenerator[CommandEvent]:
        """Its output from an offset on, as it comes, and its exit. With the encoding "bytes",
        raw() of an output event is exactly what the command wrote."""
        following = self._sandboxes.follow(
            self._target, self.command_id, offset=offset, encoding=encoding
        )
        async with aclosing(following) as events:
            async for event in events:
                yield event

    async def wait(self, timeout: float | None = None) -> ExecuteResult:  # noqa: ASYNC109
        """Wait for its end. Raises TimeoutError if it still runs after timeout seconds."""
        with anyio.fail_after(timeout):
            result = await self.result()
            if result.exit_code is None:
                async for _ in self.stream(offset=result.output_bytes):
                    pass
                result = await self.result()
        return result

    async def kill(self) -> CommandInfo:
        """End it and everything it has started. Killing twice is harmless."""
        return await self.signal("KILL")

    async def signal(self, signal: SignalName) -> CommandInfo:
        """Send a signal to all its processes."""
        return await self._sandboxes.signal(self._target, self.command_id, signal=signal)

    async def resize(self, *, rows: int, cols: int) -> CommandInfo:
        """Set the size of its terminal. Raises InvalidRequest if it has none."""
        return await self._sandboxes.resize(self._target, self.command_id, rows=rows, cols=cols)

    async def send_stdin(self, data: str | bytes) -> StdinReceipt:
        """Input for a command that was started with `stdin_open` or on a terminal. Raises
        StdinClosed."""
        data = data.encode() if isinstance(data, str) else data
        return await self._sandboxes.send_stdin(self._target, self.command_id, data)

    async def close_stdin(self) -> StdinReceipt:
        """The end of its input."""
        return await self._sandboxes.send_stdin(self._target, self.command_id, b"", eof=True)


class Process(Blocking):
    """A command that runs in the background of a sandbox, with or without this object.

    To come back to it, also from another process: `client.process(command_id)`.
    """

    def __init__(self, process: AsyncProcess, background: Background, *, client: object) -> None:
        """client: kept here, because a client that nobody holds is closed."""
        super().__init__(process, background)
        self._client = client

    @property
    def command_id(self) -> str:
        """The name of the command in its session."""
        return str(self._awaited.command_id)

    result = blocking(AsyncProcess.result)
    output = blocking(AsyncProcess.output)
    stream = iterating(AsyncProcess.stream)
    wait = blocking(AsyncProcess.wait)
    kill = blocking(AsyncProcess.kill)
    signal = blocking(AsyncProcess.signal)
    resize = blocking(AsyncProcess.resize)
    send_stdin = blocking(AsyncProcess.send_stdin)
    close_stdin = blocking(AsyncProcess.close_stdin)
