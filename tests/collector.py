"""A collector of traces on a real socket: OTLP over HTTP, as protobuf."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

_KINDS = {
    Span.SPAN_KIND_CLIENT: "client",
    Span.SPAN_KIND_SERVER: "server",
    Span.SPAN_KIND_INTERNAL: "internal",
}


@dataclass(frozen=True, kw_only=True)
class Collected:
    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the first span of a trace."""
    failed: bool
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    url: str = ""
    spans: list[Collected] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: bytes = b""
    """All that was received, unpacked."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    self.changed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.changed.wait(), 0.2)
        except TimeoutError:
            told = "\n".join(f"{s.service} {s.name} {s.attributes}" for s in self.spans)
            raise AssertionError(f"not collected; there is:\n{told}") from None

    def named(self, name: str, service: str = "") -> list[Collected]:
        return [s for s in self.spans if s.name == name and s.service.endswith(service)]

    async def one(self, name: str, service: str = "") -> Collected:
        """The only span of this name, as soon as it is there. service: how its name ends."""
        await self.until(lambda: bool(self.named(name, service)))
        found = self.named(name, service)
        assert len(found) == 1, found
        return found[0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                lines = [line.partition(": ") for line in head[1:] if line]
                headers = {name.lower(): value for name, _, value in lines}
                body = await reader.readexactly(int(headers["content-length"]))
                found = head[0].startswith("POST /v1/traces ")
                if found:
                    self._take(headers, body)
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % (200 if found else 404)
                )
                await writer.drain()
        writer.close()

    def _take(self, headers: dict[str, str], body: bytes) -> None:
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append(headers)
        self.raw += body
        for of_service in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = attributes(of_service.resource.attributes)["service.name"]
            for of_scope in of_service.scope_spans:
                self.spans += [_collected(service, span) for span in of_scope.spans]
        self.changed.set()


def _collected(service: str, span: Span) -> Collected:
    return Collected(
        service=service,
        name=span.name,
        kind=_KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=attributes(span.attributes),
    )


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    return getattr(pair.value, pair.value.WhichOneof("value") or "string_value")


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    made = Collector()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    try:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made
    finally:
        server.close()
