"""PrometheusMetrics: the metrics of one process, in a registry of its own.

docs/metrics.md tells of every name; a test compares it with what a server shows.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple, get_args

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


class _Family(NamedTuple):
    """A histogram if it has buckets, else a counter."""

    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_FAMILIES = {
    "sandbox_http_request_duration_seconds": _Family(
        "HTTP requests, from their head to the end of their answer.",
        ("method", "route", "code"),
        _REQUEST_S,
    ),
    "sandbox_commands": _Family("Commands and code by how they ended.", ("outcome",)),
    "sandbox_command_duration_seconds": _Family(
        "Commands and code that ran to their end, as their box measured it.", buckets=_COMMAND_S
    ),
    "sandbox_policy_verdicts": _Family("Verdicts of the policy.", ("verdict",)),
    "sandbox_pool_claims": _Family(
        "Boxes that were given to sessions: warm, waited for (miss), or of no pool (special).",
        ("provider", "result"),
    ),
    "sandbox_box_start_duration_seconds": _Family(
        "Starts of boxes, until they are ready.", ("provider",), _START_S
    ),
    "sandbox_box_start_failures": _Family("Boxes that could not be started.", ("provider",)),
    "sandbox_sessions_begun": _Family("Sessions by how they began.", ("how",)),
    "sandbox_sessions_ended": _Family("Sessions by why they ended.", ("reason",)),
    "sandbox_egress_connections": _Family(
        "Connections of boxes through the server that are over.", ("verdict",)
    ),
    "sandbox_egress_bytes": _Family("Bytes of those connections.", ("direction",)),
    "sandbox_file_bytes": _Family("Bytes of files to and from boxes.", ("direction",)),
    "sandbox_checkpoint_duration_seconds": _Family(
        "Checkpoints that were taken, and sessions that began from one.",
        ("operation", "outcome"),
        _CHECKPOINT_S,
    ),
    "sandbox_audit_failures": _Family("Times from which on the audit log could not be written."),
    "sandbox_audit_lost_records": _Family("Records that the audit log does not have."),
    "sandbox_redis_errors": _Family("Calls to Redis that failed."),
    "sandbox_engine_errors": _Family("Calls to a Docker engine that failed."),
    "sandbox_pod_streams": _Family("Streams to pods that were opened, over tcp or exec.", ("way",)),
    "sandbox_worker_errors": _Family(
        "Calls that a worker did not serve: unreachable, or the code of its error.", ("reason",)
    ),
    "sandbox_event_loop_lag_seconds": _Family("How late the event loop was.", buckets=_LAG_S),
}
_AT_ZERO: dict[str, tuple[str, ...]] = {
    "sandbox_commands": get_args(CommandOutcome),
    "sandbox_policy_verdicts": ("allowed", "rejected"),
    "sandbox_sessions_begun": ("created", "recreated", "restored", "resumed", "adopted"),
    "sandbox_sessions_ended": ("cleaned", "expired", "lost", "superseded"),
    "sandbox_egress_connections": ("allowed", "refused", "failed"),
    "sandbox_egress_bytes": ("in", "out"),
    "sandbox_file_bytes": ("upload", "download"),
    "sandbox_worker_errors": ("unreachable", "misdirected", "runtime_unavailable", "capacity"),
    "sandbox_pod_streams": ("tcp", "exec"),
}
"""Series that are there from the start, so that the first of its kind is an increase."""


class PrometheusMetrics(Metrics):
    def __init__(self, *, role: str, version: str) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._families: dict[str, Counter | Histogram] = {
            name: Histogram(name, meaning, labels, buckets=buckets, registry=registry)
            if buckets
            else Counter(name, meaning, labels, registry=registry)
            for name, (meaning, labels, buckets) in _FAMILIES.items()
        }
        self._series: dict[tuple[str, ...], Counter | Histogram] = {}
        self._by_kind: dict[tuple[str, str, int | None], tuple[str, str, str]] = {}
        Gauge(
            "sandbox_build_info",
            "1; its labels tell what runs.",
            ["version", "python", "role"],
            registry=registry,
        ).labels(version, platform.python_version(), role).set(1)
        ProcessCollector(registry=registry)
        for name, labels in _AT_ZERO.items():
            for label in labels:
                self._one(name, (label,))
        for both in product(get_args(CheckpointOperation), ("ok", "failed")):
            self._one("sandbox_checkpoint_duration_seconds", both)

    def _one(self, name: str, labels: tuple[str, ...]) -> Counter | Histogram:
        """One of a family, which is looked up faster than by its labels."""
        found = self._series.get((name, *labels))
        if found is None:
            family = self._families[name]
            found = self._series[name, *labels] = family.labels(*labels) if labels else family
        return found

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        counter = self._one(name, labels)
        assert isinstance(counter, Counter)
        counter.inc(by)

    def _observe(self, name: str, seconds: float, *labels: str) -> None:
        histogram = self._one(name, labels)
        assert isinstance(histogram, Histogram)
        histogram.observe(seconds)

    def request(self, method: str, route: str, status: int | None, seconds: float) -> None:
        kind = method, route, status
        labels = self._by_kind.get(kind) or self._new_kind(*kind)
        self._observe("sandbox_http_request_duration_seconds", seconds, *labels)

    def _new_kind(self, method: str, route: str, status: int | None) -> tuple[str, str, str]:
        known = method if method in _METHODS else OTHER
        code = "none" if status is None else str(status)
        if len(self._by_kind) >= _MOST_SERIES:
            return OTHER, OTHER, code
        if known == method:
            self._by_kind[method, route, status] = known, route, code
        return known, route, code

    def watch(self, read: Callable[[], Readings]) -> None:
        """With the counters of its providers at zero. Once."""
        for provider in read().warm:
            for result in get_args(Claim):
                self._one("sandbox_pool_claims", (provider, result))
            self._one("sandbox_box_start_duration_seconds", (provider,))
            self._one("sandbox_box_start_failures", (provider,))
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
