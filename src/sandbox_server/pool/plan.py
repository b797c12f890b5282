"""How many boxes the pool should start or end, and when again if that fails. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_S = 0.5
CAP_S = 30.0
"""Bounds of the wait before a failing engine is tried again."""


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How many boxes are kept warm, and how fast that follows the demand."""

    size: int = 5
    """Warm boxes at rest."""
    min_size: int = 2
    """Warm boxes after `idle_after_s` without a claim."""
    max_size: int = 20
    """Most warm boxes, at any rate of claims."""
    concurrency: int = 4
    """Most boxes starting at a time, cold starts included, and most ending."""
    grow_window_s: float = 10.0
    """At least as many boxes are kept warm as were claimed within this time."""
    shrink_window_s: float = 60.0
    """Surplus boxes are kept while as many were claimed within this time."""
    idle_after_s: float = 600.0
    tick_s: float = 1.0
    """How often to plan, besides after every claim and start."""
    check_every_s: float = 15.0
    """How often a warm box is pinged; at least four times within its dead-man's time."""
    check_timeout_s: float = 10.0
    claim_timeout_s: float = 1.0
    """How long a warm box may take to answer a claim."""
    start_timeout_s: float = 60.0
    retry_after_s: float = 5.0
    """Retry-after of a claim when the machine is full."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_size <= self.size <= self.max_size:
            raise ValueError(
                "pool sizes must satisfy 0 <= min <= size <= max: "
                f"{self.min_size}, {self.size}, {self.max_size}"
            )
        if self.concurrency < 1:
            raise ValueError(f"pool concurrency must be at least 1: {self.concurrency}")
        if self.grow_window_s > self.shrink_window_s:
            raise ValueError("pool shrink_window_s must not be shorter than grow_window_s")


@dataclass(frozen=True)
class Plan:
    """How many boxes to start or to end now; one of them is 0."""

    start: int = 0
    end: int = 0


def plan(
    *,
    warm: int,
    starting: int,
    claims: Sequence[float],
    room: int | None,
    settings: PoolSettings,
    now: float,
    idle_since: float,
    waiting: int = 0,
    failing: bool = False,
    retry_at: float = 0.0,
) -> Plan:
    """Compare the current number of boxes with the wanted one.

    `claims` are the times of the last claims (`settings.max_size` of them are enough) and
    `idle_since` is the last of them, or when the pool was opened. `waiting` claims will take boxes
    that are still starting. `room` is how many boxes, warm and starting, fit on the machine besides
    its sessions; None means no limit. While `failing`, nothing is started before `retry_at`, and
    one box at a time after it.
    """
    idle = now - idle_since >= settings.idle_after_s
    floor = _wanted(claims, now - settings.grow_window_s, settings, idle=idle)
    ceiling = _wanted(claims, now - settings.shrink_window_s, settings, idle=idle)
    supply = warm + starting - waiting
    free = settings.max_size if room is None else room - warm - starting
    end = min(warm, max(supply - ceiling, -free, 0))
    if end or (failing and now < retry_at):
        return Plan(end=end)
    slots = (1 if failing else settings.concurrency) - starting
    return Plan(start=max(0, min(floor - supply, slots, free)))


def _wanted(claims: Sequence[float], since: float, settings: PoolSettings, *, idle: bool) -> int:
    rest = settings.min_size if idle else settings.size
    recent = sum(1 for claimed_at in claims if claimed_at > since)
    return min(settings.max_size, max(rest, recent))


def backoff(failures: int, *, jitter: float) -> float:
    """Seconds to wait after consecutive failures: doubled each time, up to a cap.

    `jitter` is a random number from 0 to 1; the wait is between half and all of that time.
    """
    if failures <= 0:
        return 0.0
    whole: float = min(CAP_S, FIRST_S * 2.0 ** min(failures - 1, 64))
    return whole * (0.5 + 0.5 * jitter)


@dataclass(frozen=True)
class Health:
    """Whether boxes can be started now; if not, why, and when to retry."""

    failures: int = 0
    failure: str | None = None
    retry_at: float = 0.0

    def failed(self, why: str, *, now: float, jitter: float) -> Health:
        """Starts that fail together count as one failure, so that the wait does not grow."""
        if now < self.retry_at:
            return Health(self.failures, why, self.retry_at)
        failures = self.failures + 1
        return Health(failures, why, now + backoff(failures, jitter=jitter))
