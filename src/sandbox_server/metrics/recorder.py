"""Metrics: where the parts of a server report what they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CommandOutcome = Literal[
    "ok", "failed", "timeout", "killed", "rejected", "lost", "error", "left"
]  # fmt: skip
"""How a command ended: exit code 0, another one, its time limit, a signal or a lack of memory, the
policy, with its box, without a result for another reason, or after its caller had left."""
Claim = Literal["warm", "miss", "special"]
"""What a new session got: a warm box, one it had to wait for because none was warm, or one that no
pool has, such as with limits or volumes of its own."""
CheckpointOperation = Literal["take", "restore"]


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Numbers that are read when somebody asks."""

    sessions: int = 0
    capacity: int = 0
    """Of all processes of the server together."""
    warm: Mapping[str, int] = field(default_factory=dict)
    """Boxes by provider."""
    starting: Mapping[str, int] = field(default_factory=dict)


class Metrics:
    """Says which series a report goes to. This one drops them: what a part reports to where nobody
    asked for metrics. See PrometheusMetrics."""

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""

    def _observe(self, name: str, seconds: float, *labels: str) -> None:
        """Enter a duration in a histogram."""

    def request(self, method: str, route: str, status: int | None, seconds: float) -> None:
        """An answered request. route: its template, never the path. status: None if the caller got
        no answer."""

    def command(self, outcome: CommandOutcome, seconds: float | None = None) -> None:
        """A command or code that has ended. seconds: None if it did not run to its end."""
        self._count("sandbox_commands", outcome)
        if seconds is not None:
            self._observe("sandbox_command_duration_seconds", seconds)

    def verdict(self, *, allowed: bool) -> None:
        """What the policy said of a command."""
        self._count("sandbox_policy_verdicts", "allowed" if allowed else "rejected")

    def claim(self, provider: str, result: Claim) -> None:
        """A box that was given to a session."""
        self._count("sandbox_pool_claims", provider, result)

    def box_started(self, provider: str, seconds: float) -> None:
        """A box that is ready."""
        self._observe("sandbox_box_start_duration_seconds", seconds, provider)

    def box_failed(self, provider: str) -> None:
        """A box that could not be started."""
        self._count("sandbox_box_start_failures", provider)

    def session_began(self, how: str) -> None:
        """how: a SessionState, or adopted."""
        self._count("sandbox_sessions_begun", how)

    def session_ended(self, reason: str) -> None:
        """reason: a Status, or superseded."""
        self._count("sandbox_sessions_ended", reason)

    def connection(self, verdict: str, *, bytes_in: int, bytes_out: int) -> None:
        """A connection of a box through the server that is over. bytes_in: into the box."""
        self._count("sandbox_egress_connections", verdict)
        self._count("sandbox_egress_bytes", "in", by=bytes_in)
        self._count("sandbox_egress_bytes", "out", by=bytes_out)

    def uploaded(self, count: int) -> None:
        """Bytes of a file into a box."""
        self._count("sandbox_file_bytes", "upload", by=count)

    def downloaded(self, count: int) -> None:
        """Bytes of a file or artifact to a caller."""
        self._count("sandbox_file_bytes", "download", by=count)

    def checkpoint(self, operation: CheckpointOperation, seconds: float, *, ok: bool) -> None:
        """A checkpoint that was taken, or from which a session began."""
        outcome = "ok" if ok else "failed"
        self._observe("sandbox_checkpoint_duration_seconds", seconds, operation, outcome)

    def audit_failed(self) -> None:
        """The audit log cannot be written any more, or not from the start."""
        self._count("sandbox_audit_failures")

    def audit_lost(self) -> None:
        """A record that the audit log will not have."""
        self._count("sandbox_audit_lost_records")

    def redis_failed(self) -> None:
        """A call to Redis that failed after its retries."""
        self._count("sandbox_redis_errors")

    def engine_failed(self) -> None:
        """A call to the Docker engine that failed."""
        self._count("sandbox_engine_errors")

    def pod_stream(self, way: str) -> None:
        """A stream to a pod that was opened. way: tcp or exec."""
        self._count("sandbox_pod_streams", way)

    def worker_failed(self, reason: str) -> None:
        """A worker did not serve a call. reason: unreachable, or the code of its error."""
        self._count("sandbox_worker_errors", reason)

    def loop_lag(self, seconds: float) -> None:
        """How late the event loop was."""
        self._observe("sandbox_event_loop_lag_seconds", seconds)

    def watch(self, read: Callable[[], Readings]) -> None:
        """From now on, this tells the numbers of a worker."""


NO_METRICS = Metrics()
