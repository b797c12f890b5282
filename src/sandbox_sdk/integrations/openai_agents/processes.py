"""Commands a model has left running, for the shell tools of the OpenAI Agents SDK.

Those tools know a command by a number, wait for some of its output, and come back for more.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)

from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.errors import NotFound, SessionLost, StdinClosed
from sandbox_sdk.process import AsyncProcess
from sandbox_sdk.protocol.events import ExitEvent, GapEvent, OutputEvent

_WAIT_S = 10.0
_NO_STDIN = "stdin is not available for this process"
"""The framework recognises this text and tells the model what to do."""


@dataclass
class _Running:
    process: AsyncProcess
    offset: int = 0


class Processes:
    """The commands of one session, by number."""

    def __init__(self, client: AsyncSandboxClient) -> None:
        self._client = client
        self._running: dict[int, _Running] = {}
        self.generation = 0
        """The generation of the box that ran the last command."""

    def __repr__(self) -> str:
        return f"<Processes {len(self._running)} running>"

    async def start(
        self,
        words: Sequence[str],
        *,
        terminal: bool,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        wait_s: float | None,
        max_tokens: int | None,
    ) -> PtyExecUpdate:
        """Start a command and wait for its end, or for wait_s."""
        # `exec` replaces the shell, so the thread's directory and variables stay as they are.
        line = f"exec {shlex.join(words)}"
        start = self._client.terminal if terminal else self._client.start
        process = await start(line, cwd=cwd, env=env, timeout=timeout)
        number = allocate_pty_process_id(set(self._running))
        self._running[number] = _Running(process)
        wait_ms = clamp_pty_yield_time_ms(round(1000 * (_WAIT_S if wait_s is None else wait_s)))
        return await self._update(number, wait_ms / 1000, max_tokens)

    async def write(
        self, number: int, text: str, *, wait_s: float | None, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Type text, and wait for output. Raises PtySessionNotFoundError."""
        if number not in self._running:
            raise PtySessionNotFoundError(session_id=number)
        if text:
            try:
                await self._running[number].process.send_stdin(text)
            except StdinClosed:
                if (await self._running[number].process.result()).exit_code is None:
                    raise RuntimeError(_NO_STDIN) from None
        wait_ms = resolve_pty_write_yield_time_ms(
            yield_time_ms=round(1000 * (wait_s or 0)), input_empty=not text
        )
        return await self._update(number, wait_ms / 1000, max_tokens)

    async def end_all(self) -> None:
        running, self._running = self._running, {}
        for each in running.values():
            with contextlib.suppress(NotFound, SessionLost):
                await each.process.kill()

    async def _update(self, number: int, wait_s: float, max_tokens: int | None) -> PtyExecUpdate:
        """What a command has written since the last update, and its exit code if it has ended."""
        running = self._running[number]
        written: list[str] = []
        exit_code = None
        with anyio.move_on_after(wait_s):
            async for event in running.process.stream(offset=running.offset):
                if isinstance(event, OutputEvent):
                    written.append(event.data)
                    running.offset = event.next_offset
                elif isinstance(event, GapEvent):
                    written.append(f"[… {event.next_offset - event.offset:,} bytes are lost …]\n")
                    running.offset = event.next_offset
                else:
                    self.generation = event.generation
                    exit_code = event.exit_code if isinstance(event, ExitEvent) else None
                    if isinstance(event, ExitEvent) and event.hint:
                        written.append(f"[hint: {event.hint}]\n")
        if exit_code is not None:
            del self._running[number]
        text, tokens = truncate_text_by_tokens("".join(written), max_tokens)
        process_id = None if exit_code is not None else number
        return PtyExecUpdate(process_id, text.encode(), exit_code, tokens)
