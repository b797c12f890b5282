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
    """Measures nothing: what a part reports to where nobody asked for metrics. See
    PrometheusMetrics."""

    def request(self, method: str, route: str, status: int | None, seconds: float) -> None:
        """An answered request. route: its template, never the path. status: None if the caller got
        no answer."""

    def command(self, outcome: CommandOutcome, seconds: float | None = None) -> None:
        """A command or code that has ended. seconds: None if it did not run to its end."""

    def verdict(self, *, allowed: bool) -> None:
        """What the policy said of a command."""

    def claim(self, provider: str, result: Claim) -> None:
        """A box that was given to a session."""

    def box_started(self, provider: str, seconds: float) -> None:
        """A box that is ready."""

    def box_failed(self, provider: str) -> None:
        """A box that could not be started."""

    def session_began(self, how: str) -> None:
        """how: a SessionState, or adopted."""

    def session_ended(self, reason: str) -> None:
        """reason: a Status, or superseded."""

    def connection(self, verdict: str, *, bytes_in: int, bytes_out: int) -> None:
        """A connection of a box through the server that is over. bytes_in: into the box."""

    def uploaded(self, count: int) -> None:
        """Bytes of a file into a box."""

    def downloaded(self, count: int) -> None:
        """Bytes of a file or artifact to a caller."""

    def checkpoint(self, operation: CheckpointOperation, seconds: float, *, ok: bool) -> None:
        """A checkpoint that was taken, or from which a session began."""

    def audit_failed(self) -> None:
        """The audit log cannot be written any more, or not from the start."""

    def audit_lost(self) -> None:
        """A record that the audit log will not have."""

    def redis_failed(self) -> None:
        """A call to Redis that failed after its retries."""

    def engine_failed(self) -> None:
        """A call to the Docker engine that failed."""

    def pod_stream(self, way: str) -> None:
        """A stream to a pod that was opened. way: tcp or exec."""

    def worker_failed(self, reason: str) -> None:
        """A worker did not serve a call. reason: unreachable, or the code of its error."""

    def loop_lag(self, seconds: float) -> None:
        """How late the event loop was."""

    def watch(self, read: Callable[[], Readings]) -> None:
        """From now on, this tells the numbers of a worker."""


NO_METRICS = Metrics()
