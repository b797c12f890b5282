"""Which workers that are gone are looked for, and how often."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox_server.sessions import takeover
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.takeover import Takeover


class Cluster:
    """Boxes by their owner, and who was asked for."""

    shared = True

    def __init__(self) -> None:
        self.owners: list[str] = []
        self.asked: list[list[str]] = []

    async def of_others(self, workers: Sequence[str]) -> Sequence[Any]:
        self.asked.append(sorted(workers))
        return [
            SimpleNamespace(id=owner, holding=SimpleNamespace(owner=owner, note=""))
            for owner in self.owners
        ]


class Workers:
    def __init__(self, *gone: str) -> None:
        self.ids = set(gone)

    async def gone(self) -> dict[str, dict[str, Any]]:
        return {worker: {} for worker in self.ids}

    async def is_gone(self, worker: str) -> bool:
        return False  # Back meanwhile: nothing is taken.


def made(workers: Workers, cluster: Cluster) -> Takeover:
    parts: Any = (None, None, workers, LoneLease("me", 1), {"kubernetes": cluster})
    return Takeover(*parts)


async def test_who_has_left_nothing_is_looked_for_once() -> None:
    cluster, workers = Cluster(), Workers("a", "b")
    cluster.owners = ["a"]
    sweeping = made(workers, cluster)
    for _ in range(3):
        await sweeping.sweep()
    assert cluster.asked == [["a", "b"], ["a"], ["a"]]
    cluster.owners = []
    for _ in range(3):
        await sweeping.sweep()
    assert len(cluster.asked) == 4


async def test_who_was_back_is_looked_for_again() -> None:
    cluster, workers = Cluster(), Workers("a")
    sweeping = made(workers, cluster)
    await sweeping.sweep()
    workers.ids = set()
    await sweeping.sweep()
    workers.ids = {"a"}
    await sweeping.sweep()
    assert cluster.asked == [["a"], ["a"]]


async def test_a_box_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "AGAIN_S", 0.0)
    cluster = Cluster()
    sweeping = made(Workers("a"), cluster)
    await sweeping.sweep()
    await sweeping.sweep()
    assert cluster.asked == [["a"], ["a"]]
