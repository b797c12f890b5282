"""Logs: one event a fact, as JSON or for people."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

# Never the locals of a frame: they may hold a secret, and rendering them takes seconds.
_short_tracebacks = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def configure(*, form: Literal["auto", "json", "console"], level: str) -> None:
    """auto is console on a terminal and JSON elsewhere."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if console else [_short_tracebacks]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class _HandOver:
    """A processor that gives the events of one thread to the standard logger `sandbox`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __call__(
        self, _: Any, name: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if threading.get_ident() != self._thread:
            return event
        level = logging.ERROR if name == "exception" else getattr(logging, name.upper())
        what, exc_info = event.pop("event"), event.pop("exc_info", None)
        fields = " ".join(f"{key}={value!r}" for key, value in event.items())
        logging.getLogger("sandbox").log(level, "%s %s", what, fields, exc_info=exc_info)
        raise structlog.DropEvent


def hand_to_logging() -> None:
    """In a program that is not ours, events of this thread go to the standard logger `sandbox`,
    which is silent unless the program wants to hear it. The rest is none of our business."""
    processors = structlog.get_config()["processors"]
    if not any(isinstance(processor, _HandOver) for processor in processors):
        logging.getLogger("sandbox").addHandler(logging.NullHandler())
        structlog.configure(processors=[_HandOver(), *processors])
