"""Traces as a collector gets them: callers, servers and wardens in one."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.collector import Collected, Collector, collecting
from tests.contract.conftest import RUNTIMES, state_dir
from tests.first_hour.reader import blocks
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import GRACE_S, Fleet
from tests.fleet.redis_server import RedisServer
from tests.integration.test_logs import the_line
from tests.server_process import ServerProcess, running

__all__ = ["redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-of-the-caller"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
KEY = "key-of-acme-4711"
SETTINGS = {
    "SANDBOX_API_KEYS": f"acme:{KEY}",
    "SANDBOX_LOG_FORMAT": "json",
    "OTEL_BSP_SCHEDULE_DELAY": "50",
}
HEADERS = {"Authorization": f"Bearer {KEY}", "traceparent": TRACEPARENT}
CALLER = """
import contextlib, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[1] + "/v1/traces")))
trace.set_tracer_provider(provider)

from sandbox_sdk import SandboxClient, SandboxError

with trace.get_tracer("agent").start_as_current_span("agent"):
    with SandboxClient("t") as sandbox, contextlib.suppress(SandboxError):
        CALL
"""


def _program(call: str) -> str:
    """One that traces and calls a server; sys.argv[1]: the collector."""
    return CALLER.replace("CALL", call)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as made:
        yield made


@pytest.fixture
async def server(state_dir: Path, collector: Collector) -> AsyncIterator[ServerProcess]:
    async with running(
        "bubblewrap", state_dir, SANDBOX_TRACES=collector.url, **SETTINGS
    ) as process:
        await process.ready()
        yield process


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=60) as client:
        yield client


async def call(program: str, server: ServerProcess, collector: Collector) -> None:
    """Run a program that traces and calls the server."""
    env = {**os.environ, "SANDBOX_URL": server.url, "SANDBOX_API_KEY": KEY,
           "OTEL_SERVICE_NAME": "the-agent"}  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, collector.url, env=env
    )
    assert await process.wait() == 0


def chain(collector: Collector, last: Collected) -> list[str]:
    """The names of a span and those above it, the first one first."""
    by_id = {span.span_id: span for span in collector.spans}
    names = [f"{last.service}: {last.name}"]
    while last.parent_id in by_id:
        last = by_id[last.parent_id]
        names.insert(0, f"{last.service}: {last.name}")
    return names


async def test_a_caller_with_the_sdk_and_one_server(
    server: ServerProcess, collector: Collector
) -> None:
    await call(_program("sandbox.execute('true')"), server, collector)
    command = await collector.one("command")
    await collector.until(lambda: bool(collector.named("POST /execute")))
    assert chain(collector, command) == [
        "the-agent: agent",
        "the-agent: sandbox.execute",
        "agent-sandbox-standalone: POST /execute",
        "agent-sandbox-standalone: warden run",
        "agent-sandbox-standalone: command",
    ]
    asked, served = await collector.one("sandbox.execute"), await collector.one("POST /execute")
    assert (asked.kind, served.kind, command.kind) == ("client", "server", "internal")
    assert asked.attributes == {
        "http.request.method": "POST",
        "url.template": "/execute",
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "http.response.status_code": 200,
        "sandbox.thread_id": "t",
    }
    assert served.attributes == {
        "http.request.method": "POST",
        "http.route": "/execute",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "http.response.status_code": 200,
        "sandbox.tenant": "acme",
        "sandbox.thread_id": "t",
    }
    assert command.attributes["process.exit.code"] == 0
    assert served.began_ns <= command.began_ns <= command.ended_ns <= served.ended_ns
    assert not any(span.failed for span in collector.spans)


async def test_the_example_in_the_documents(server: ServerProcess, collector: Collector) -> None:
    (example,) = blocks(ROOT / "docs" / "traces.md", languages=("python",))
    await call(example.text.replace("http://127.0.0.1:4318", collector.url), server, collector)
    command = await collector.one("command")
    await collector.until(lambda: len(chain(collector, command)) == 5)
    assert chain(collector, command)[0] == "the-agent: answer"


async def test_through_a_coordinator(
    state_dir: Path, redis_server: RedisServer, collector: Collector
) -> None:
    fleet = Fleet("bubblewrap", state_dir, redis_server, grace_s=GRACE_S)
    settings = {"SANDBOX_TRACES": collector.url, **SETTINGS}
    try:
        workers = [fleet.process("worker", **{**settings, "SANDBOX_API_KEYS": ""})]
        await fleet.run(workers, [fleet.process("coordinator", **settings)])
        await call(_program("sandbox.execute('true')"), fleet.coordinators[0], collector)
        command = await collector.one("command")
        await collector.one("POST /execute", "coordinator")
        await collector.until(lambda: len(chain(collector, command)) == 7)
        assert chain(collector, command) == [
            "the-agent: agent",
            "the-agent: sandbox.execute",
            "agent-sandbox-coordinator: POST /execute",
            "agent-sandbox-coordinator: sandbox.execute",
            "agent-sandbox-worker: POST /execute",
            "agent-sandbox-worker: warden run",
            "agent-sandbox-worker: command",
        ]
        # What the parts of a fleet ask each other by themselves begins no trace.
        assert {span.trace_id for span in collector.spans} == {command.trace_id}
    finally:
        await fleet.close()


async def test_the_trace_of_a_plain_caller(
    server: ServerProcess, http: httpx.AsyncClient, collector: Collector
) -> None:
    answer = await http.post("/execute", json={"thread_id": "t", "command": f"echo {SECRET}"})
    assert answer.json()["exit_code"] == 0
    served = await collector.one("POST /execute")
    assert (served.trace_id, served.parent_id) == (TRACE, PARENT)
    await collector.one("command")
    for event in ("session.created", "request"):
        assert json.loads(await the_line(server, f'"{event}"', "acme"))["trace_id"] == TRACE
    # Neither the command nor the key.
    assert SECRET.encode() not in collector.raw
    assert KEY.encode() not in collector.raw


async def test_streams_and_commands_in_the_background(
    server: ServerProcess, http: httpx.AsyncClient, collector: Collector
) -> None:
    """Their spans last until they end, whoever has left by then."""
    body = {"thread_id": "t", "command": "echo pid=$$; exit 3"}
    async with http.stream(
        "POST", "/execute", json=body, headers={"Accept": "text/event-stream"}
    ) as answer:
        told = await answer.aread()
        assert b"event: exit" in told
    command, served = await collector.one("command"), await collector.one("POST /execute")
    assert command.attributes["process.exit.code"] == 3
    assert f"pid={command.attributes['process.pid']}\\n".encode() in told
    assert command.ended_ns <= served.ended_ns
    assert not served.failed

    collector.spans.clear()
    waits = "until [ -e go ]; do sleep 0.02; done; exit 4"
    begun = await http.post(
        "/execute", json={"thread_id": "t", "command": waits, "background": True}
    )
    served = await collector.one("POST /execute")
    assert not collector.named("command")
    listed = (await http.get("/commands", params={"thread_id": "t"})).json()["commands"]
    pids = {each["command_id"]: each["pid"] for each in listed}
    await http.post("/execute", json={"thread_id": "t", "command": "touch go"})
    await collector.until(lambda: len(collector.named("command")) == 2)
    ended = next(
        span for span in collector.named("command")
        if span.attributes["sandbox.command_id"] == begun.json()["command_id"]
    )  # fmt: skip
    assert ended.attributes["process.exit.code"] == 4
    assert ended.attributes["process.pid"] == pids[begun.json()["command_id"]] > 1
    assert chain(collector, ended)[:2] == [
        "agent-sandbox-standalone: POST /execute",
        "agent-sandbox-standalone: warden follow",
    ]

    collector.spans.clear()
    async with http.stream(
        "POST", "/execute", json={"thread_id": "t", "command": "echo 1; sleep 600"},
        headers={"Accept": "text/event-stream"},
    ) as answer:  # fmt: skip
        await anext(answer.aiter_raw())
    left = await collector.one("POST /execute")
    assert not left.failed
    await collector.one("warden run")


async def test_failures(
    server: ServerProcess, http: httpx.AsyncClient, collector: Collector
) -> None:
    """By the conventions, a mistake of the caller is no failure of the server."""
    assert (await http.get("/session", params={"thread_id": "none"})).status_code == 404
    missing = await collector.one("GET /session")
    assert missing.attributes["error.type"] == "session_not_found"
    assert missing.attributes["http.response.status_code"] == 404
    assert not missing.failed
    await http.get("/nowhere/" + SECRET)
    assert (await collector.one("GET")).attributes["error.type"] == "not_found"

    await call(_program(f"sandbox.execute('true', cwd='/{SECRET}')"), server, collector)
    asked, warden = await collector.one("sandbox.execute"), await collector.one("warden run")
    for failed in (asked, warden):
        assert failed.failed
        assert failed.attributes["error.type"] == "file_not_found"
    assert SECRET.encode() not in collector.raw


async def test_commands_are_shown_where_the_operator_says_so(
    state_dir: Path, collector: Collector
) -> None:
    settings = {**SETTINGS, "SANDBOX_TRACES": "env", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_EXPORTER_OTLP_HEADERS": "x-token=4711", "OTEL_SERVICE_NAME": "mine",
                "SANDBOX_TRACE_COMMANDS": "true"}  # fmt: skip
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=60) as http:
            await http.post("/execute", json={"thread_id": "t", "command": "echo shown"})
        command = await collector.one("command", "mine")
        assert command.attributes["process.command_line"] == "echo shown"
        assert collector.headers[0]["x-token"] == "4711"


async def test_what_is_left_is_sent_at_the_stop(state_dir: Path, collector: Collector) -> None:
    settings = {**SETTINGS, "SANDBOX_TRACES": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            await http.get("/sessions")
        assert collector.spans == []
        await server.stop(signal.SIGTERM)
        assert (await collector.one("GET /sessions")).trace_id == TRACE


async def test_processes_of_a_server(state_dir: Path, collector: Collector) -> None:
    """A call that another process answers is one more hop of the same trace."""
    settings = {**SETTINGS, "SANDBOX_TRACES": collector.url, "SANDBOX_PROCESSES": "2"}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.healthy()
        async with httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=60) as http:
            for number in range(6):
                body = {"thread_id": f"t{number}", "command": "true"}
                assert (await http.post("/execute", json=body)).status_code == 200
        await collector.until(lambda: len(collector.named("command")) == 6)
        assert {span.trace_id for span in collector.spans} == {TRACE}


async def test_without_the_setting_there_are_none(state_dir: Path, collector: Collector) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    async with running("bubblewrap", state_dir, **SETTINGS, **env) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=60) as http:
            await http.post("/execute", json={"thread_id": "t", "command": "true"})
        await server.stop(signal.SIGTERM)
        assert not any("trace_id" in line for line in server.lines())
    assert collector.headers == []
