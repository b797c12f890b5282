"""What the pool should start and what it should end. Pure: nothing here waits, asks or starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How many boxes wait for a claim, and how fast that number follows what is claimed."""

    size: int = 5
    """Warm boxes at rest."""
    min_size: int = 2
    """Warm boxes after `idle_after_s` without a claim."""
    max_size: int = 20
    """Warm boxes at most, however fast claims come."""
    concurrency: int = 4
    """Boxes that start at the same time, cold starts included, and boxes that end."""
    grow_window_s: float = 10.0
    """As many boxes are kept warm as were claimed within this time."""
    shrink_window_s: float = 60.0
    """None is ended for being too many while as many were claimed within this time."""
    idle_after_s: float = 600.0
    tick_s: float = 1.0
    """A plan is made after every claim and every start, and otherwise this often."""
    check_every_s: float = 15.0
    """A warm box is asked for a sign of life this often, and at least four times within its
    dead-man's time."""
    check_timeout_s: float = 10.0
    claim_timeout_s: float = 1.0
    """How long a warm box may take to answer before it is handed out."""
    start_timeout_s: float = 60.0
    retry_after_s: float = 5.0
    """What a claim is told that finds the machine full."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_size <= self.size <= self.max_size:
            raise ValueError(
                "pool sizes must be in order, 0 <= min <= size <= max: "
                f"{self.min_size}, {self.size}, {self.max_size}"
            )
        if self.concurrency < 1:
            raise ValueError(f"at least one box must be allowed to start: {self.concurrency}")
        if self.grow_window_s > self.shrink_window_s:
            raise ValueError("a pool that shrinks sooner than it grows would never come to rest")


@dataclass(frozen=True)
class Plan:
    """What to do now. Never both."""

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
    """Compare the boxes there are with those there should be.

    `claims` are the times of the last claims (`settings.max_size` of them are enough) and
    `idle_since` is the last of them, or when the pool was opened. `waiting` claims will take boxes
    that are still starting. `room` is how many boxes, warm and starting, the machine has place for
    besides its sessions; None means no bound. While `failing`, nothing is started before `retry_at`
    and a single box after it.
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
