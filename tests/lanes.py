"""Which tests `make test` runs, and which are left to the rest of `make test-all`.

A test that is run over several ways or runtimes is run once in `make test`, where that is cheapest.
Marks say where this is not enough:

    seam    over every way: what is easily right on one way and wrong on the next
    kernel  on every runtime: what the kernel, an engine or a disk does, not our code alone
    rest    not at all: takes minutes, and something quicker in `make test` finds the same faults

The rest is whatever `make test` does not run, so both together are everything.
docs/testing.md has the table of who runs what, and tests/breaks shows that faults are found.
"""

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.contract.stand import Way

VARIABLES = ("SANDBOX_TEST_LANE", "SANDBOX_TEST_SLICE")
LANE = os.environ.get("SANDBOX_TEST_LANE", "all")
"""`main` is what `make test` runs, `rest` everything else."""
SLICE = os.environ.get("SANDBOX_TEST_SLICE", "")
"""`3/8`: the third of eight parts of that, which need no order."""

WAYS = (
    "alone", "http", "sync-local", "service", "async-remote", "async", "sync",
    "processes", "routed", "fleet", "fake",
)  # fmt: skip
RUNTIMES = ("bubblewrap", "docker", "gvisor", "e2b", "kubernetes", "kubernetes_gvisor")
"""The cheapest first."""
HOSTILE = ("bubblewrap", "docker")
"""The runtimes on which `make test` runs every hostile case."""


def rounds(number: int, variable: str, *, main: int = 1) -> int:
    """Rounds of a test that repeats something at random moments: fewer in `make test`.
    variable: asks for another number."""
    return int(os.environ.get(variable, main if LANE == "main" else number))


@dataclass(frozen=True)
class Place:
    """The way and the runtime of an instance, as far as it has them."""

    way: str = ""
    runtime: str = ""
    store: str = ""

    @property
    def cost(self) -> tuple[int, int, bool]:
        way = WAYS.index(self.way) if self.way else 0
        runtime = RUNTIMES.index(self.runtime) if self.runtime in RUNTIMES else 0
        return runtime, way, self.store not in ("", "folder", "disks")


def chosen(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    return in_slice(in_lane(items, LANE), SLICE)


def in_lane(items: Sequence[pytest.Item], lane: str) -> list[pytest.Item]:
    if lane == "all":
        return list(items)
    main = set(map(id, _main(items)))
    if lane == "main":
        return [item for item in items if id(item) in main]
    return [item for item in items if id(item) not in main or _has_more_rounds(item)]


def in_slice(items: Iterable[pytest.Item], which: str) -> list[pytest.Item]:
    """Raises UsageError."""
    if not which:
        return list(items)
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", which)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of:
        raise pytest.UsageError(f"SLICE={which}: give one as 3/8, the third of eight parts")
    return [item for item in items if zlib.crc32(item.nodeid.encode()) % of == number - 1]


def _is_rest(item: pytest.Item) -> bool:
    """The mark may name parameters, and then concerns those alone."""
    mark = item.get_closest_marker("rest")
    ids = item.nodeid.partition("[")[2]
    return mark is not None and (not mark.args or any(name in ids for name in mark.args))


def _has_more_rounds(item: pytest.Item) -> bool:
    """Than `make test` does of it."""
    return item.get_closest_marker("rounds") is not None


def _main(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    groups: dict[str, list[tuple[pytest.Item, Place]]] = defaultdict(list)
    for item in items:
        if not _is_rest(item):
            same, place = _placed(item)
            groups[same].append((item, place))
    return [item for group in groups.values() for item in _chosen(group)]


def _chosen(group: list[tuple[pytest.Item, Place]]) -> list[pytest.Item]:
    """Of the instances of one test."""
    one = group[0][0]
    cheapest = min(place.cost for _, place in group)
    found = []
    for item, place in group:
        is_hostile = "/hostile/" in one.nodeid and place.runtime in HOSTILE
        if place.cost == cheapest or is_hostile or _asked_for(one, place):
            found.append(item)
    return found


def _asked_for(test: pytest.Item, place: Place) -> bool:
    if place.runtime in ("e2b", "kubernetes", "kubernetes_gvisor"):
        return False
    if place.way:
        return test.get_closest_marker("seam") is not None
    return test.get_closest_marker("kernel") is not None


def _placed(item: pytest.Item) -> tuple[str, Place]:
    """What the instances of a test have in common, and where this one is run."""
    test, _, ids = item.nodeid.partition("[")
    place = Place()
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        if isinstance(value, Way):
            place = Place(value.name, value.runtime, value.store)
        elif isinstance(value, str) and value in RUNTIMES:
            place = replace(place, runtime=value)
        elif isinstance(value, str) and value in WAYS:
            place = replace(place, way=value)
        else:
            continue
        ids = ids.replace(str(value), "*", 1)
    return f"{test}[{ids}", place
