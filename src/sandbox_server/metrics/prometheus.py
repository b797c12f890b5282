"""PrometheusMetrics: the metrics of one process, in a registry of its own.

docs/metrics.md tells of every name; a test compares it with what a server shows.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sandbox_server.metrics.recorder import (
    CheckpointOperation,
    Claim,
    CommandOutcome,
    Metrics,
    Readings,
)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
_MOST_SERIES = 2000
"""Of requests. There are fewer kinds; what would be more is counted as other."""
_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_COMMAND_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600)
_START_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CHECKPOINT_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 120)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class PrometheusMetrics(Metrics):
    def __init__(self, *, role: str, version: str) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        histogram = partial(Histogram, registry=registry)
        counter = partial(Counter, registry=registry)
        self._requests = histogram(
            "sandbox_http_request_duration_seconds",
            "HTTP requests, from their head to the end of their answer.",
            ["method", "route", "code"],
            buckets=_REQUEST_S,
        )
        self._by_kind: dict[tuple[str, str, int | None], Histogram] = {}
        self._commands = counter(
            "sandbox_commands", "Commands and code by how they ended.", ["outcome"]
        )
        self._by_outcome: dict[str, Counter] = {}
        self._durations = histogram(
            "sandbox_command_duration_seconds",
            "Commands and code that ran to their end, as their box measured it.",
            buckets=_COMMAND_S,
        )
        verdicts = counter("sandbox_policy_verdicts", "Verdicts of the policy.", ["verdict"])
        self._allowed, self._rejected = verdicts.labels("allowed"), verdicts.labels("rejected")
        self._claims = counter(
            "sandbox_pool_claims",
            "Boxes that were given to sessions: warm, waited for (miss), or of no pool (special).",
            ["provider", "result"],
        )
        self._starts = histogram(
            "sandbox_box_start_duration_seconds",
            "Starts of boxes, until they are ready.",
            ["provider"],
            buckets=_START_S,
        )
        self._start_failures = counter(
            "sandbox_box_start_failures", "Boxes that could not be started.", ["provider"]
        )
        self._begun = counter("sandbox_sessions_begun", "Sessions by how they began.", ["how"])
        self._ended = counter("sandbox_sessions_ended", "Sessions by why they ended.", ["reason"])
        self._connections = counter(
            "sandbox_egress_connections",
            "Connections of boxes through the server that are over.",
            ["verdict"],
        )
        egress = counter("sandbox_egress_bytes", "Bytes of those connections.", ["direction"])
        self._egress_in, self._egress_out = egress.labels("in"), egress.labels("out")
        files = counter("sandbox_file_bytes", "Bytes of files to and from boxes.", ["direction"])
        self._uploads, self._downloads = files.labels("upload"), files.labels("download")
        self._checkpoints = histogram(
            "sandbox_checkpoint_duration_seconds",
            "Checkpoints that were taken, and sessions that began from one.",
            ["operation", "outcome"],
            buckets=_CHECKPOINT_S,
        )
        self._audit_failures = counter(
            "sandbox_audit_failures", "Times from which on the audit log could not be written."
        )
        self._audit_lost = counter(
            "sandbox_audit_lost_records", "Records that the audit log does not have."
        )
        self._redis = counter("sandbox_redis_errors", "Calls to Redis that failed.")
        self._engine = counter("sandbox_engine_errors", "Calls to a Docker engine that failed.")
        self._pod_streams = counter(
            "sandbox_pod_streams", "Streams to pods that were opened, over tcp or exec.", ["way"]
        )
        self._workers = counter(
            "sandbox_worker_errors",
            "Calls that a worker did not serve: unreachable, or the code of its error.",
            ["reason"],
        )
        self._lag = histogram(
            "sandbox_event_loop_lag_seconds", "How late the event loop was.", buckets=_LAG_S
        )
        Gauge(
            "sandbox_build_info",
            "1; its labels tell what runs.",
            ["version", "python", "role"],
            registry=registry,
        ).labels(version, platform.python_version(), role).set(1)
        ProcessCollector(registry=registry)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """So that the first of its kind is an increase."""
        for outcome in CommandOutcome.__args__:  # type: ignore[attr-defined]
            self._by_outcome[outcome] = self._commands.labels(outcome)
        for how in ("created", "recreated", "restored", "resumed", "adopted"):
            self._begun.labels(how)
        for reason in ("cleaned", "expired", "lost", "superseded"):
            self._ended.labels(reason)
        for verdict in ("allowed", "refused", "failed"):
            self._connections.labels(verdict)
        for reason in ("unreachable", "misdirected", "runtime_unavailable", "capacity"):
            self._workers.labels(reason)
        for way in ("tcp", "exec"):
            self._pod_streams.labels(way)
        for operation in CheckpointOperation.__args__:  # type: ignore[attr-defined]
            for outcome in ("ok", "failed"):
                self._checkpoints.labels(operation, outcome)

    def request(self, method: str, route: str, status: int | None, seconds: float) -> None:
        kind = method, route, status
        found = self._by_kind.get(kind)
        if found is None:
            found = self._new_kind(*kind)
        found.observe(seconds)

    def _new_kind(self, method: str, route: str, status: int | None) -> Histogram:
        known = method if method in _METHODS else OTHER
        code = "none" if status is None else str(status)
        if len(self._by_kind) >= _MOST_SERIES:
            return self._requests.labels(OTHER, OTHER, code)
        made = self._requests.labels(known, route, code)
        if known == method:
            self._by_kind[method, route, status] = made
        return made

    def command(self, outcome: CommandOutcome, seconds: float | None = None) -> None:
        self._by_outcome[outcome].inc()
        if seconds is not None:
            self._durations.observe(seconds)

    def verdict(self, *, allowed: bool) -> None:
        (self._allowed if allowed else self._rejected).inc()

    def claim(self, provider: str, result: Claim) -> None:
        self._claims.labels(provider, result).inc()

    def box_started(self, provider: str, seconds: float) -> None:
        self._starts.labels(provider).observe(seconds)

    def box_failed(self, provider: str) -> None:
        self._start_failures.labels(provider).inc()

    def session_began(self, how: str) -> None:
        self._begun.labels(how).inc()

    def session_ended(self, reason: str) -> None:
        self._ended.labels(reason).inc()

    def connection(self, verdict: str, *, bytes_in: int, bytes_out: int) -> None:
        self._connections.labels(verdict).inc()
        self._egress_in.inc(bytes_in)
        self._egress_out.inc(bytes_out)

    def uploaded(self, count: int) -> None:
        self._uploads.inc(count)

    def downloaded(self, count: int) -> None:
        self._downloads.inc(count)

    def checkpoint(self, operation: CheckpointOperation, seconds: float, *, ok: bool) -> None:
        self._checkpoints.labels(operation, "ok" if ok else "failed").observe(seconds)

    def audit_failed(self) -> None:
        self._audit_failures.inc()

    def audit_lost(self) -> None:
        self._audit_lost.inc()

    def redis_failed(self) -> None:
        self._redis.inc()

    def engine_failed(self) -> None:
        self._engine.inc()

    def pod_stream(self, way: str) -> None:
        self._pod_streams.labels(way).inc()

    def worker_failed(self, reason: str) -> None:
        self._workers.labels(reason).inc()

    def loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def watch(self, read: Callable[[], Readings]) -> None:
        """With the counters of its providers at zero. Once."""
        for provider in read().warm:
            for result in Claim.__args__:  # type: ignore[attr-defined]
                self._claims.labels(provider, result)
            self._starts.labels(provider)
            self._start_failures.labels(provider)
        self.registry.register(_Gauges(read))


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Readings]) -> None:
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._read()
        yield GaugeMetricFamily("sandbox_sessions", "Live sessions.", now.sessions)
        yield GaugeMetricFamily(
            "sandbox_sessions_capacity", "How many the server may have.", now.capacity
        )
        for name, meaning, numbers in (
            ("sandbox_pool_warm_boxes", "Boxes that wait for a session.", now.warm),
            ("sandbox_pool_starting_boxes", "Boxes that are being started.", now.starting),
        ):
            family = GaugeMetricFamily(name, meaning, labels=["provider"])
            for provider, number in numbers.items():
                family.add_metric([provider], number)
            yield family
