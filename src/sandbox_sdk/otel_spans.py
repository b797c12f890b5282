"""Spans by the API of OpenTelemetry. Imported only where the program has imported that already."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextvars import Token
from typing import Self

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sandbox_sdk.tracing import Attributes, Kind, Span, error_type, own_provider

_SCOPE = "agent-sandbox"
_KINDS: dict[Kind, trace.SpanKind] = {
    "client": trace.SpanKind.CLIENT,
    "server": trace.SpanKind.SERVER,
    "internal": trace.SpanKind.INTERNAL,
}
_W3C = TraceContextTextMapPropagator()
"""Not the one that the program has chosen: it may send baggage, which is nobody else's business."""


def begin_span(
    name: str,
    kind: Kind,
    attributes: Attributes | None,
    caller: Mapping[str, str] | None,
    of: Span | None,
    at_ns: int | None,
    *,
    root: bool,
) -> OtelSpan | None:
    """None if it has no parent and needs one."""
    within: Context | None = None
    if caller is not None:
        within = _W3C.extract(caller)
    elif isinstance(of, OtelSpan):
        within = of.context
    if not root and not trace.get_current_span(within).get_span_context().is_valid:
        return None
    began_ns = time.time_ns() if at_ns is None else at_ns
    made = _tracer(own_provider() or trace.get_tracer_provider()).start_span(
        name, within, _KINDS[kind], attributes, start_time=began_ns, record_exception=False
    )
    return OtelSpan(made, began_ns) if made.get_span_context().is_valid else None


def current_span() -> OtelSpan | None:
    found = trace.get_current_span()
    return OtelSpan(found, 0) if found.get_span_context().is_valid else None


@functools.lru_cache(maxsize=1)
def _tracer(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(_SCOPE)


class OtelSpan(Span):
    def __init__(self, span: trace.Span, began_ns: int) -> None:
        self._span = span
        self.began_ns = began_ns
        self._attached: Token[Context] | None = None

    @functools.cached_property
    def context(self) -> Context:
        return trace.set_span_in_context(self._span)

    @functools.cached_property
    def headers(self) -> Mapping[str, str]:  # type: ignore[override]
        found: dict[str, str] = {}
        _W3C.inject(found, self.context)
        return found

    @property
    def trace_id(self) -> str:  # type: ignore[override]
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def set(self, name: str, value: str | int | float | bool | None) -> None:
        if value is not None:
            self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, error_type: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        if isinstance(error, Exception):
            self.fail(error_type(error))
        self._span.end(at_ns)

    def __enter__(self) -> Self:
        self._attached = context.attach(self.context)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._attached is not None:
            context.detach(self._attached)
        self.end(error)
