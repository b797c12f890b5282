"""Following a command over as many links as it takes, and its span: how long the warden was asked
for, and the command itself as it tells it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from sandbox_sdk import tracing
from sandbox_sdk.tracing import NO_SPAN, Span
from sandbox_server.runtime.agent import CommandResult, Event, Started
from sandbox_warden import frames

from .answers import EventOrder, event_of
from .link import Channel, Link, LinkLost
from .reconnecting_link import Breaks, ReconnectingLink

_NAMES = {frames.RUN: "warden run", frames.CODE: "warden code"}
_TEXTS = (("command", "process.command_line"), ("code", "sandbox.code"))


class Following:
    """The events of one command, from its start or an offset in its output on. Use as an async
    context manager: leaving it before the result tells the warden to send no more.

    No generator: every command passes here, and a generator would cost it a twentieth more.
    """

    def __init__(
        self,
        box: ReconnectingLink,
        kind: int,
        body: dict[str, Any],
        *,
        on_start: Callable[[Started], None],
        within_s: float | None = None,
    ) -> None:
        """within_s: how long it may take until the result; checked at every event, and whenever
        the warden has been silent."""
        self._box = box
        self._kind = kind
        self._body = body
        self._on_start = on_start
        self._order = EventOrder(int(body.get("offset", 0)))
        self._breaks = Breaks(box.box_id)
        self._deadline = None if within_s is None else time.monotonic() + within_s
        self._started = False
        self._open: tuple[Link, Channel] | None = None
        self._span: Span = NO_SPAN

    async def __aenter__(self) -> Self:
        self._span = _begin_span(self._kind, self._box.box_id)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._span.end(error)
        await self._leave()

    async def _leave(self) -> None:
        if self._open is not None:
            (_, channel), self._open = self._open, None
            await channel.leave()

    async def next(self) -> Event:
        """The next event; the last is the result. Raises TimeoutError after within_s, and what
        WardenClient raises."""
        while True:
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise TimeoutError
            try:
                event = await self._next()
            except LinkLost as exc:
                await self._leave()
                await self._breaks.pause(exc)
                continue
            if isinstance(event, Started):
                if self._started:
                    continue
                self._started = True
                self._span.set("sandbox.command_id", event.command_id)
                self._on_start(event)
            if event is not None:
                return event

    async def _next(self) -> Event | None:
        """None where the warden was silent but answers. Raises LinkLost."""
        if self._open is None:
            link = await self._box.get_link()
            self._order.reconnected()
            channel = link.request(self._kind, {**self._body, "offset": self._order.offset})
            self._open = link, await channel.__aenter__()
        link, channel = self._open
        frame = await self._box.frame(link, channel)
        if frame is None:
            return None
        event = event_of(frame)
        self._order.check(event)
        if isinstance(event, CommandResult):
            self._open = None
            link.forget(channel)
            _set_result(self._span, event, self._body)
        return event


def _begin_span(kind: int, box_id: str) -> Span:
    """Not where nobody asked: a command that a server adopts begins no trace."""
    name = _NAMES.get(kind, "warden follow")
    return tracing.begin(name, attributes={"sandbox.box_id": box_id}, root=False)


def _set_result(span: Span, result: CommandResult, body: dict[str, Any]) -> None:
    """Also makes the span of the command. A box is hostile: what it says cannot have begun before
    it was asked."""
    if span is NO_SPAN or result.exit_code is None:
        return
    ended_ns = time.time_ns()
    began_ns = max(ended_ns - round(min(result.duration_ms, 1e12) * 1e6), span.began_ns)
    command = tracing.begin("command", of=span, at_ns=began_ns)
    command.set("sandbox.command_id", result.command_id)
    command.set("process.pid", result.pid)
    command.set("process.exit.code", result.exit_code)
    command.set("sandbox.timed_out", result.timed_out or None)
    for field, name in _TEXTS:
        if field in body:
            for each, text in tracing.text_attribute(name, body[field]).items():
                command.set(each, text)
    command.end(at_ns=ended_ns)
