"""Logging: one line per event, as JSON or for people.

Text from callers is escaped: it cannot break a line or control the terminal.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from sandbox_server import log_fields

# Without locals: they may contain secrets, and rendering them takes seconds.
_short_tracebacks = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace(r"\x00-", r"\x00-\x09\x0b-"))


def configure(*, form: Literal["auto", "json", "console"], level: str) -> None:
    """auto: console on a terminal, else JSON. Libraries log in the same format, from WARNING up."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    steps: list[Processor] = [
        log_fields.merge,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *_rendering(console=console),
    ]
    structlog.configure(
        processors=steps,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    foreign = logging.StreamHandler(sys.stderr)
    foreign.setFormatter(_library_formatter(steps))
    logging.basicConfig(handlers=[foreign], level=logging.WARNING, force=True)


def _rendering(*, console: bool) -> list[Processor]:
    if not console:
        return [_short_tracebacks, structlog.processors.JSONRenderer()]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [structlog.processors.format_exc_info, escape_control, renderer]


def _library_formatter(steps: list[Processor]) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.ExtraAdder(allow=[]),
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *steps,
        ]
    )


def escape_control(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, except newlines in tracebacks; JSON does so by itself."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = (_CONTROL if name != "exception" else _CONTROL_IN_LINES).sub(
                lambda found: repr(found[0])[1:-1], value
            )
    return event


class _HandOver:
    """A processor that passes the events of one thread to the standard logger `sandbox`."""

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
    """Embedded in another program: pass the events of this thread to the standard logger
    `sandbox`, which is silent unless configured. The rest of structlog is left alone."""
    processors = structlog.get_config()["processors"]
    if not any(isinstance(processor, _HandOver) for processor in processors):
        logging.getLogger("sandbox").addHandler(logging.NullHandler())
        structlog.configure(processors=[_HandOver(), *processors])
