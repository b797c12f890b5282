"""Commands in a box: run, follow, inspect, signal, send input.

The server picks the command id, so a RUN that is repeated after a broken link joins the running
command: nothing runs twice and no output is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Unpack

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import (
    OUTPUT_LIMIT,
    AgentAnswer,
    CodeOptions,
    CommandResult,
    CommandSummary,
    ContextAbout,
    ContextList,
    ContextRequest,
    Count,
    Event,
    Gap,
    KeptOutput,
    Output,
    RunOptions,
    Started,
)
from sandbox_warden import frames

from .answers import EventOrder, checked, event_of
from .following import Following
from .link import Channel, Link, LinkLost
from .reconnecting_link import ANSWER_S, Breaks, Reachable, ReconnectingLink

BEYOND = 1 << 62
"""An offset past any output: attach without output."""
STDIN_PIECE = 256 * 1024
_NO_INPUT = hashlib.sha256().hexdigest()
UNREAD_S = 10.0
"""How long input may wait for a command that does not read, before the call fails."""


class StdinReceived(AgentAnswer):
    received: Count


class CommandCalls(ReconnectingLink):
    """The command methods of BoxAgent."""

    def __init__(self, box: Reachable, *, epoch: int = 1, deadman_s: float | None = None) -> None:
        super().__init__(box, epoch=epoch, deadman_s=deadman_s)
        self._feeding: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._feeding:
            task.cancel()
        await super().close()

    async def run(self, command: str, **options: Unpack[RunOptions]) -> CommandResult:
        body = _run_body(command, options, follow=False)
        timeout_s = body["timeout_s"]
        patience_s = None if timeout_s is None else timeout_s + ANSWER_S
        kept = _kept(body["output_limit"])
        try:
            async with self._following(frames.RUN, body, options, within_s=patience_s) as events:
                while not isinstance(event := await events.next(), CommandResult):
                    if isinstance(event, Output | Gap):
                        kept.add(event)
                return event.with_output(kept)
        except TimeoutError:
            raise errors.RuntimeUnavailable(
                f"box {self._box.id} did not report the end of a command within {patience_s:g} s,"
                f" {ANSWER_S:g} s more than its timeout; try again"
            ) from None

    async def start(self, command: str, **options: Unpack[RunOptions]) -> str:
        async with contextlib.aclosing(self.stream(command, **options)) as events:
            async for event in events:
                if isinstance(event, Started):
                    return event.command_id
        raise AssertionError("a command starts or raises")

    def stream(self, command: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        body = _run_body(command, options, follow=True)
        return self._follow(frames.RUN, body, options)

    def code(self, code: str, **options: Unpack[CodeOptions]) -> AsyncGenerator[Event]:
        return self._follow(frames.CODE, _code_body(code, options), {})

    async def contexts(self, request: ContextRequest) -> list[ContextAbout]:
        return (await self._ask(ContextList, frames.CONTEXTS, dict(request))).contexts

    def attach(self, command_id: str, *, offset: int = 0) -> AsyncGenerator[Event]:
        body = {"command_id": command_id, "offset": offset, "follow": True}
        return self._follow(frames.ATTACH, body, {})

    async def result(self, command_id: str, *, output_limit: int = OUTPUT_LIMIT) -> CommandResult:
        body = {"command_id": command_id, "follow": False, "at_once": True}

        async def read(_link: Link, channel: Channel) -> CommandResult:
            order, kept = EventOrder(), _kept(output_limit)
            while not isinstance(event := event_of(await channel.receive()), CommandResult):
                order.check(event)
                if isinstance(event, Output | Gap):
                    kept.add(event)
            return event.with_output(kept)

        return await self._attempt(frames.ATTACH, body, read)

    async def ended(self, command_id: str) -> CommandResult | None:
        body = {"command_id": command_id, "follow": False, "offset": BEYOND}
        found = None
        async with contextlib.aclosing(self._follow(frames.ATTACH, body, {})) as events:
            async for event in events:
                if isinstance(event, CommandResult):
                    found = event
        return found

    async def signal(self, command_id: str, number: int) -> CommandSummary:
        body = {"command_id": command_id, "signal": number}
        return await self._ask(CommandSummary, frames.SIGNAL, body)

    async def resize(self, command_id: str, *, rows: int, cols: int) -> CommandSummary:
        body = {"command_id": command_id, "rows": rows, "cols": cols}
        return await self._ask(CommandSummary, frames.RESIZE, body)

    async def send_stdin(
        self, command_id: str, data: bytes, *, end: bool = False, offset: int | None = None
    ) -> int:
        """Send input to a command started with stdin_open. Returns the total bytes of input the
        warden has received, whether the command has read them or not.

        With an offset, a repeated call writes nothing twice. Raises StdinClosed, Capacity if the
        command does not read, InvalidRequest if the offset leaves a hole, RuntimeUnavailable.
        """
        try:
            async with asyncio.timeout(UNREAD_S):
                return await self._send_stdin(command_id, data, offset=offset, end=end)
        except TimeoutError:
            if offset is None:
                raise _ambiguous(f"command {command_id} did not read for {UNREAD_S:g} s") from None
            raise errors.Capacity(
                f"command {command_id} does not read its input: {len(data)} bytes waited for"
                f" {UNREAD_S:g} s; send them again later",
                retry_after_s=1,
            ) from None

    async def _send_stdin(
        self, command_id: str, data: bytes, *, offset: int | None, end: bool, initial: bool = False
    ) -> int:
        received, sent = 0, 0
        while True:
            piece = data[sent : sent + STDIN_PIECE]
            body = {
                "command_id": command_id,
                "offset": None if offset is None else offset + sent,
                "end": end and sent + len(piece) == len(data),
                "initial": initial,
            }
            received = await self._send_piece(body, piece)
            sent += len(piece)
            if sent == len(data):
                return received

    async def _send_piece(self, body: dict[str, Any], piece: bytes) -> int:
        """Send one piece; the warden takes all of it, once it has room, or nothing."""
        breaks = Breaks(self._box.id)
        while True:
            link = await self.get_link()
            try:
                async with link.request(frames.STDIN, body) as channel:
                    await channel.send(frames.DATA, piece)
                    await channel.send(frames.EOF)
                    return checked(StdinReceived, await self._next(link, channel)).received
            except LinkLost as exc:
                if body["offset"] is None:
                    raise _ambiguous(f"the link broke while {len(piece)} bytes were sent") from exc
                await breaks.pause(exc)

    async def _follow(
        self, kind: int, body: dict[str, Any], options: RunOptions
    ) -> AsyncGenerator[Event]:
        async with self._following(kind, body, options) as events:
            while not isinstance(event := await events.next(), CommandResult):
                yield event
        yield event

    def _following(
        self, kind: int, body: dict[str, Any], options: RunOptions, *, within_s: float | None = None
    ) -> Following:
        feed = partial(self._feed, options=options)
        return Following(self, kind, body, on_start=feed, within_s=within_s)

    def _feed(self, started: Started, options: RunOptions) -> None:
        """Send a command's initial input in the background: it may be slow to read, and its caller
        may disconnect."""
        stdin, offset = options.get("stdin"), started.stdin_received
        if stdin is None or offset > len(stdin):
            return
        end = not options.get("stdin_open", False)

        async def feed() -> None:
            with contextlib.suppress(errors.SandboxError):
                await self._send_stdin(
                    started.command_id, stdin[offset:], offset=offset, end=end, initial=True
                )

        task = asyncio.create_task(feed())
        self._feeding.add(task)
        task.add_done_callback(self._feeding.discard)


def _ambiguous(what: str) -> errors.RuntimeUnavailable:
    return errors.RuntimeUnavailable(
        f"{what}: the input may or may not have arrived; send it with `offset` to repeat it safely"
    )


def _kept(output_limit: int) -> KeptOutput:
    """A warden keeps output_limit bytes, but may hold twice as much before it trims."""
    return KeptOutput(2 * output_limit + frames.WINDOW)


def _run_body(command: str, options: RunOptions, *, follow: bool) -> dict[str, Any]:
    cwd, env, stdin = options.get("cwd"), options.get("env") or {}, options.get("stdin")
    stdin_open = options.get("stdin_open", False)
    input_digest = hashlib.sha256(stdin).hexdigest() if stdin else _NO_INPUT
    what: list[Any] = [command, cwd, sorted(env.items()), input_digest, stdin_open]
    pty = options.get("pty")
    if pty is not None:
        what.append("pty")
    return {
        "command": command,
        "command_id": options.get("command_id") or uuid.uuid4().hex,
        "digest": hashlib.sha256(json.dumps(what).encode()).hexdigest(),
        "key": options.get("key"),
        "timeout_s": options.get("timeout_s", 30.0),
        "cwd": cwd,
        "env": dict(env),
        "stdin": stdin is not None,
        "stdin_open": stdin_open,
        "pty": None if pty is None else {"rows": pty[0], "cols": pty[1]},
        "output_limit": options.get("output_limit", OUTPUT_LIMIT),
        "follow": follow,
        **({"own": True} if options.get("own") else {}),
    }


def _code_body(code: str, options: CodeOptions) -> dict[str, Any]:
    env = options.get("env") or {}
    language, context_id = options.get("language"), options.get("context_id")
    what = ["code", code, language, context_id, sorted(env.items())]
    return {
        "code": code,
        "command_id": options.get("command_id") or uuid.uuid4().hex,
        "digest": hashlib.sha256(json.dumps(what).encode()).hexdigest(),
        "key": options.get("key"),
        "language": language,
        "context_id": context_id,
        "kernels": dict(options.get("kernels") or {}),
        "timeout_s": options.get("timeout_s", 30.0),
        "env": dict(env),
        "output_limit": options.get("output_limit", OUTPUT_LIMIT),
        "changes": options.get("changes", False),
        "follow": options.get("live", True),
    }
