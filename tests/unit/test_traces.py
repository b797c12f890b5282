"""Traces without a server: settings that cannot be, and what a program without traces pays."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from sandbox_sdk import tracing
from sandbox_sdk.protocol.errors import InvalidRequest, SessionLost
from sandbox_sdk.tracing import NO_SPAN
from sandbox_server.settings import Settings
from sandbox_server.traces import check_traces, endpoint
from sandbox_server.unused import unused

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Those that have ended."""
    made = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracing.use(provider)
    yield made
    tracing.use(None)


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    (found,) = spans.get_finished_spans()
    return found


@pytest.mark.parametrize(
    "url", ["collector:4318", "ftp://collector", "http://", "http://[::1", "http://h:99999", "on"]
)
def test_what_is_no_collector(url: str) -> None:
    with pytest.raises(InvalidRequest, match="SANDBOX_TRACES: not the URL of a collector"):
        check_traces(Settings(traces=url))


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequest, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        check_traces(Settings(traces="http://me:hunter2@collector:4318"))
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("good", ["", "env", "http://127.0.0.1:4318", "https://c.example/otlp/"])
def test_what_is_one(good: str) -> None:
    check_traces(Settings(traces=good))


def test_without_the_extra_the_start_says_what_to_install() -> None:
    source = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry.sdk"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from sandbox_server.settings import Settings
from sandbox_server.traces import check_traces
try:
    check_traces(Settings(traces="env"))
except Exception as exc:
    print(exc)
"""
    assert "SANDBOX_TRACES needs `pip install 'agent-sandbox[traces]'`" in run(source)


def run(source: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    ("url", "sent_to"),
    [
        ("env", None),
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp", "https://c/otlp/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_where_spans_are_sent(url: str, sent_to: str | None) -> None:
    assert endpoint(url) == sent_to


def test_commands_without_traces_have_no_effect() -> None:
    found = unused(Settings(trace_commands=True))
    assert found == {"SANDBOX_TRACE_COMMANDS": "SANDBOX_TRACES is not set"}


def test_a_program_without_traces_does_not_import_them() -> None:
    source = """
import sys
from sandbox_sdk import RemoteBackend, tracing
with tracing.begin("call", "client") as span:
    span.set("a", 1)
    print(tracing.current() is span is tracing.NO_SPAN, dict(span.headers), span.trace_id)
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    assert run(source) == "True {} \n[]\n"


def test_a_program_with_the_api_alone_makes_none() -> None:
    """As some libraries import it: no provider, no spans."""
    source = """
from opentelemetry import trace
from sandbox_sdk import tracing
print(tracing.begin("call") is tracing.NO_SPAN)
"""
    assert run(source) == "True\n"


def test_the_parent_is_that_of_the_caller(spans: InMemorySpanExporter) -> None:
    caller = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    with tracing.begin("request", "server", caller=caller) as span:
        assert span.trace_id == TRACEPARENT[3:35]
        assert span.headers["tracestate"] == "vendor=1"
        assert span.headers["traceparent"].startswith(TRACEPARENT[:36])
        assert tracing.current().trace_id == span.trace_id
    found = only(spans)
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == TRACEPARENT[36:52]
    assert tracing.current() is NO_SPAN


@pytest.mark.parametrize("wrong", ["", "garbage", "00-0-0-01", f"ff{TRACEPARENT[2:]}"])
def test_a_wrong_traceparent_begins_a_trace(spans: InMemorySpanExporter, wrong: str) -> None:
    tracing.begin("request", "server", caller={"traceparent": wrong}).end()
    assert only(spans).parent is None


def test_what_nobody_asked_for_begins_no_trace(spans: InMemorySpanExporter) -> None:
    assert tracing.begin("warden run", root=False) is NO_SPAN
    with tracing.begin("request"):
        tracing.begin("warden run", root=False).end()
    assert [span.name for span in spans.get_finished_spans()] == ["warden run", "request"]


def test_a_failure_is_told_by_its_code_alone(spans: InMemorySpanExporter) -> None:
    with pytest.raises(SessionLost), tracing.begin("call"):
        raise SessionLost("with a text of the caller")
    found = only(spans)
    assert not found.status.is_ok
    assert found.attributes == {"error.type": "session_lost"}
    assert found.events == ()
    assert found.status.description is None


@pytest.mark.parametrize("left", [asyncio.CancelledError(), GeneratorExit()])
def test_who_leaves_has_not_failed(spans: InMemorySpanExporter, left: BaseException) -> None:
    tracing.begin("stream").end(left)
    assert only(spans).attributes == {}


def test_a_trace_that_is_not_sampled_goes_on_as_such() -> None:
    tracing.use(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    try:
        flags = tracing.begin("call").headers["traceparent"].rpartition("-")[2]
        assert not int(flags, 16) & 1
    finally:
        tracing.use(None)


def test_texts_are_attributes_only_where_they_are_to_be_shown(spans: InMemorySpanExporter) -> None:
    assert tracing.text_attribute("process.command_line", "echo 1") == {}
    tracing.use(tracing.own_provider(), commands=True)
    shown = tracing.text_attribute("process.command_line", "echo 1")
    assert shown == {"process.command_line": "echo 1"}
