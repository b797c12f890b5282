"""Logging: one line per event, as JSON or for people.

Text from callers is escaped: it cannot break a line or control the terminal.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from sandbox_server import log_fields
from sandbox_server.log_writer import LineWriter

# Without locals: they may contain secrets, and rendering them takes seconds.
_short_tracebacks = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace(r"\x00-", r"\x00-\x09\x0b-"))


def configure(
    *, form: Literal["auto", "json", "console"], level: str, process: int | None = None
) -> None:
    """auto: console on a terminal, else JSON. Libraries log in the same format, from WARNING up.

    process: a field of every line, where several processes write into one log.
    """
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    of_process: list[Processor] = [] if process is None else [_OfProcess(process)]
    rendering = [*of_process, *_rendering(console=console)]
    writer = LineWriter(sys.stderr, partial(_rendered, rendering))
    structlog.configure(
        processors=[_noted],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: _Lines(writer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_OfLibraries(writer)], level=logging.WARNING, force=True)


def _noted(_logger: WrappedLogger, method: str, event: EventDict) -> tuple[tuple[EventDict], Any]:
    """All that has to be known at once; the rest is left to the writer."""
    level = "error" if method == "exception" else method
    noted = {**log_fields.bound(), **event, "level": level, "timestamp": time.time()}
    if noted.get("exc_info") is True:  # What is being handled in this thread, not in the writer's.
        noted["exc_info"] = sys.exception()
    return (noted,), {}


def _rendered(rendering: list[Processor], event: EventDict) -> str:
    at = datetime.fromtimestamp(event.pop("timestamp", time.time()), UTC)
    event["timestamp"] = at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    line: Any = event
    for step in rendering:
        line = step(None, "", line)
    return str(line)


class _Lines:
    """structlog's logger: those of its methods that are called."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def info(self, event: EventDict) -> None:
        # Outside of a request, others may write to stderr too: there the order counts.
        (self._writer.hold if "request_id" in event else self._writer.write)(event)

    def error(self, event: EventDict) -> None:
        self._writer.write(event)

    debug = info
    warning = critical = exception = error


class _OfLibraries(logging.Handler):
    """Writes the records of libraries as lines of ours."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # Its arguments do not fit: as logging does, tell without raising.
            self.handleError(record)
            return
        event = {
            **log_fields.bound(),
            "event": message,
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": record.created,
        }
        if record.exc_info:
            event["exc_info"] = record.exc_info
        self._writer.write(event)


class _OfProcess:
    """A processor that adds the number of this process."""

    def __init__(self, process: int) -> None:
        self._process = process

    def __call__(self, _: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        event.setdefault("process", self._process)
        return event


def _rendering(*, console: bool) -> list[Processor]:
    if not console:
        return [_short_tracebacks, structlog.processors.JSONRenderer()]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    return [structlog.processors.format_exc_info, escape_control, renderer]


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
