"""Timing and the arithmetic of samples. Nothing here knows what is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

Action = Callable[[], Awaitable[object]]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which so many percent of the samples lie, interpolated between neighbours.

    Raises ValueError where there are no samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Summary:
    """What is told of a series."""

    n: int
    p50: float
    p95: float
    p99: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        return cls(
            len(samples),
            percentile(samples, 50),
            percentile(samples, 95),
            percentile(samples, 99),
            min(samples),
            max(samples),
        )


def orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Who comes when, round by round: everybody is first as often, and the direction alternates, so
    that nobody always pays for the same neighbour."""
    for number in range(rounds):
        start = number // 2 % len(names) if names else 0
        order = [*names[start:], *names[:start]]
        yield order if number % 2 == 0 else order[::-1]


async def time_s(action: Action) -> float:
    """How long an action takes."""
    start = time.perf_counter()
    await action()
    return time.perf_counter() - start


async def time_ms(action: Action) -> float:
    return 1000 * await time_s(action)


def per_s(size: int, seconds: float) -> float:
    """Throughput in MB/s, where a MB is a million bytes."""
    return size / 1e6 / seconds


def settled(samples: Sequence[float], *, count: int, within: float) -> bool:
    """Whether the last `count` samples differ by no more than `within`."""
    last = samples[-count:]
    return len(last) == count and max(last) - min(last) <= within
