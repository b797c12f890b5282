"""Spans of OpenTelemetry, where the program has set that up; nothing otherwise.

A program with traces has imported opentelemetry itself. It is looked up among the loaded modules
and never imported from here, so a program without traces pays for one look into a dict.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

from sandbox_sdk.protocol.errors import SandboxError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

Kind = Literal["client", "server", "internal"]
Attributes = Mapping[str, str | int | float | bool]


class Span:
    """One that is not recorded. As a context manager, it is the parent of those begun inside; do
    not use it so in a generator, whose caller would get that parent too.

    Only the code of an error is recorded: a message may contain what a caller has sent.
    """

    headers: Mapping[str, str] = {}
    """traceparent and tracestate, for the next hop."""
    trace_id = ""
    began_ns = 0

    def set(self, name: str, value: str | int | float | bool | None) -> None:
        """An attribute; None sets nothing."""

    def rename(self, name: str) -> None: ...

    def fail(self, error_type: str) -> None:
        """It has failed; error_type: the code of the error."""

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        """error: what ended it. Who leaves early (GeneratorExit, a cancelled task) has not failed.
        at_ns: Unix time; without, now."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Ends it."""


NO_SPAN = Span()


class _Own:
    """What a server has set for itself."""

    provider: TracerProvider | None = None
    commands = False


def use(provider: TracerProvider | None, *, commands: bool = False) -> None:
    """Make spans with this provider, not with that of the program: libraries find that too, and
    would add spans of their own, with what callers send. commands: whether the text of commands is
    an attribute of their spans; it may contain secrets."""
    _Own.provider, _Own.commands = provider, commands


def is_on() -> bool:
    """Whether there is a tracer provider."""
    if _Own.provider is not None:
        return True
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return False
    return not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def begin(
    name: str,
    kind: Kind = "internal",
    *,
    attributes: Attributes | None = None,
    caller: Mapping[str, str] | None = None,
    of: Span | None = None,
    at_ns: int | None = None,
    root: bool = True,
) -> Span:
    """Begin a span below the current one. End it, or use it as a context manager.

    caller: headers of a request whose traceparent is the parent. of: another parent. at_ns: Unix
    time of its start; without, now. root: whether it may begin a trace, where it has no parent.
    """
    if not is_on():
        return NO_SPAN
    from sandbox_sdk.otel_spans import begin_span

    return begin_span(name, kind, attributes, caller, of, at_ns, root=root) or NO_SPAN


def current() -> Span:
    """The span that this code runs in, once any was begun here. Do not end it."""
    look = getattr(sys.modules.get("sandbox_sdk.otel_spans"), "current_span", None)
    found: Span | None = look() if look is not None else None
    return found or NO_SPAN


def error_type(error: BaseException) -> str:
    return error.code if isinstance(error, SandboxError) else type(error).__name__


def own_provider() -> TracerProvider | None:
    return _Own.provider


def text_attribute(name: str, text: object) -> dict[str, str]:
    """The text of a command or of code, if it is to be shown."""
    return {name: str(text)} if _Own.commands else {}
