"""Spans of what a warden does: how long it was asked for, and the command itself as it tells it."""

from __future__ import annotations

import time
from typing import Any

from sandbox_sdk import tracing
from sandbox_sdk.tracing import NO_SPAN, Span
from sandbox_server.runtime.agent import CommandResult
from sandbox_warden import frames

_NAMES = {frames.RUN: "warden run", frames.CODE: "warden code"}
_TEXTS = (("command", "process.command_line"), ("code", "sandbox.code"))


def begin_following(kind: int, box_id: str) -> Span:
    """Not where nobody asked: a command that a server adopts begins no trace."""
    name = _NAMES.get(kind, "warden follow")
    return tracing.begin(name, attributes={"sandbox.box_id": box_id}, root=False)


def set_result(span: Span, result: CommandResult, body: dict[str, Any]) -> None:
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
