"""Metrics that take an accident to see, and texts of several processes as one."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.metrics.exposition import joined, text_of
from sandbox_server.metrics.prometheus import PrometheusMetrics
from sandbox_server.metrics.recorder import NO_METRICS, Metrics, Readings
from sandbox_server.network.egress import Subject
from sandbox_server.network.outbound import Note
from sandbox_server.network.rules import Verdict
from sandbox_server.providers import networks_of
from sandbox_server.runtime.docker.engine import Endpoint, Engine
from sandbox_server.settings import load
from tests.metrics.page import total

REPORTS: dict[str, Callable[[Metrics], None]] = {
    "request": lambda metrics: metrics.request("GET", "/a", None, 0.1),
    "command": lambda metrics: metrics.command("ok", 0.1),
    "verdict": lambda metrics: metrics.verdict(allowed=False),
    "claim": lambda metrics: metrics.claim("docker", "warm"),
    "box_started": lambda metrics: metrics.box_started("docker", 0.1),
    "box_failed": lambda metrics: metrics.box_failed("docker"),
    "session_began": lambda metrics: metrics.session_began("adopted"),
    "session_ended": lambda metrics: metrics.session_ended("lost"),
    "connection": lambda metrics: metrics.connection("allowed", bytes_in=1, bytes_out=2),
    "uploaded": lambda metrics: metrics.uploaded(1),
    "downloaded": lambda metrics: metrics.downloaded(1),
    "checkpoint": lambda metrics: metrics.checkpoint("take", 0.1, ok=False),
    "audit_failed": lambda metrics: metrics.audit_failed(),
    "audit_lost": lambda metrics: metrics.audit_lost(),
    "redis_failed": lambda metrics: metrics.redis_failed(),
    "engine_failed": lambda metrics: metrics.engine_failed(),
    "pod_stream": lambda metrics: metrics.pod_stream("exec"),
    "worker_failed": lambda metrics: metrics.worker_failed("unreachable"),
    "loop_lag": lambda metrics: metrics.loop_lag(0.1),
    "watch": lambda metrics: metrics.watch(Readings),
}


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics(role="standalone", version="1")


def told(metrics: PrometheusMetrics, process: int = 0) -> str:
    return text_of(metrics.registry, process=process).decode()


async def test_an_engine_that_does_not_answer(metrics: PrometheusMetrics) -> None:
    engine = Engine(Endpoint(url="unix:///nowhere", path="/nowhere"), metrics=metrics)
    try:
        with pytest.raises(RuntimeUnavailable):
            await engine.version()
    finally:
        await engine.close()
    assert total(told(metrics), "sandbox_engine_errors_total") == 1


def test_connections_of_boxes(metrics: PrometheusMetrics) -> None:
    networks = networks_of(load(), metrics=metrics)
    try:
        for verdict, count in ((Verdict.ALLOWED, 10), (Verdict.REFUSED, 1)):
            note = Note("secret.example", 443, "GET", verdict, bytes_in=count, bytes_out=2 * count)
            networks._report(Subject("t", "thread", "session"), note)
    finally:
        networks.close()
    text = told(metrics)
    for name in ("allowed", "refused"):
        assert total(text, "sandbox_egress_connections_total", verdict=name) == 1
    assert total(text, "sandbox_egress_bytes_total", direction="in") == 11
    assert total(text, "sandbox_egress_bytes_total", direction="out") == 22
    assert "secret" not in text


def test_kinds_of_requests_have_a_bound(metrics: PrometheusMetrics) -> None:
    """Whatever methods callers think of, and even if routes had none."""
    for number in range(5000):
        metrics.request(f"METHOD{number}", "/a", 200, 0.1)
        metrics.request("GET", f"/{number}", 200, 0.1)
    count = "sandbox_http_request_duration_seconds_count"
    text = told(metrics)
    assert total(text, count) == 10_000
    assert sum(line.startswith(f"{count}{{") for line in text.splitlines()) <= 2002


def test_processes_are_joined_and_one_that_is_silent_is_told(metrics: PrometheusMetrics) -> None:
    metrics.watch(lambda: Readings(sessions=2, capacity=7, warm={"docker": 1}))
    metrics.command("ok", 0.5)
    text = joined([told(metrics, 0).encode(), None, told(metrics, 2).encode()]).decode()
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(set(families)) == len(families)
    assert total(text, "sandbox_commands_total", outcome="ok") == 2
    assert total(text, "sandbox_sessions") == 4
    assert total(text, "sandbox_sessions_capacity") == 7
    assert total(text, "sandbox_build_info") == 1
    ups = [total(text, "sandbox_process_up", process=str(number)) for number in range(3)]
    assert ups == [1, 0, 1]


def test_nobody_asked(metrics: PrometheusMetrics) -> None:
    """What measures has all that may be reported to it."""
    reports = {name for name in vars(Metrics) if not name.startswith("_")}
    assert reports == REPORTS.keys()

    def shown() -> list[str]:
        return [line for line in told(metrics).splitlines() if line.startswith("sandbox_")]

    for name, report in REPORTS.items():
        report(NO_METRICS)
        before = shown()
        report(metrics)
        assert shown() != before, name
