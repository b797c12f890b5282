"""Traces of a server: where its spans go, as the settings say."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandbox_sdk import tracing
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server import __version__
from sandbox_server.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

FROM_ENVIRONMENT = "env"
_PATH = "/v1/traces"
_FLUSH_S = 5.0
"""How long a server that stops waits for a collector that does not answer."""
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def check_traces(settings: Settings) -> None:
    """Raises InvalidRequest if there can be no traces as they are asked for."""
    if not settings.traces:
        return
    if settings.traces != FROM_ENVIRONMENT:
        _check_url(settings)
    if not all(map(_is_installed, _NEEDED)):
        raise InvalidRequest(
            f"{settings.variable('traces')} needs `pip install 'agent-sandbox[traces]'`"
        )


def _check_url(settings: Settings) -> None:
    """Its text is not repeated: it may have a password."""
    name = settings.variable("traces")
    try:
        parts = urlsplit(settings.traces)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong:
        raise InvalidRequest(
            f"{name}: not the URL of a collector, such as http://127.0.0.1:4318; or"
            f" {FROM_ENVIRONMENT}, for the OTEL_… variables"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(
            f"{name}: a URL without user and password, please: put them into"
            " OTEL_EXPORTER_OTLP_HEADERS"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def endpoint(url: str) -> str | None:
    """Where spans are sent; None for where the OTEL_ variables say."""
    if url == FROM_ENVIRONMENT:
        return None
    return url if url.rstrip("/").endswith(_PATH) else url.rstrip("/") + _PATH


@contextlib.asynccontextmanager
async def tracing_to(settings: Settings) -> AsyncIterator[None]:
    """Inside, spans of this process are sent; those that are left are sent at the end. In a process
    of several, after the fork: what sends them is a thread."""
    if not settings.traces:
        yield
        return
    provider = _provider(settings)
    tracing.use(provider, commands=settings.trace_commands)
    try:
        yield
    finally:
        tracing.use(None)
        # A daemon: the process may end while the collector is still silent.
        flushing = threading.Thread(target=provider.shutdown, daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, _FLUSH_S)


def _provider(settings: Settings) -> TracerProvider:
    # Slow to import, and most servers have no traces.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # What the operator says in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES wins.
    about = Resource(_about(settings)).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create(about.attributes), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint(settings.traces))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _about(settings: Settings) -> dict[str, Any]:
    return {
        "service.name": f"agent-sandbox-{settings.role}",
        "service.version": __version__,
        "service.instance.id": settings.name(),
        "process.pid": os.getpid(),
    }
