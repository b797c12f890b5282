"""A worker as the fleet sees it, and the choice of one for a new thread."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

KEEP_S = 86400.0
"""How long a silent worker is remembered."""
_OUTAGE = 2 / 3
"""Fraction of a lease: workers renew theirs after a third, and none has lapsed by then."""


def outage_s(lease_s: float) -> float:
    """How long no worker has to have renewed its lease for Redis to count as away."""
    return lease_s * _OUTAGE


class Phase(StrEnum):
    STARTING = "starting"
    """Holds its lease and is adopting its boxes."""
    SERVING = "serving"
    DRAINING = "draining"
    """Serves the threads it has and takes no new ones."""
    STOPPED = "stopped"
    """Has released its lease and left its boxes to its successor."""
    LEFT = "left"
    """Has released its lease and left its boxes to whoever takes them over."""


class Drain(StrEnum):
    RESTART = "restart"
    """Let running commands end, then exit; the worker's next process adopts the boxes."""
    LEAVE = "leave"
    """Wait until the last session has ended, then exit for good."""


class Presence(StrEnum):
    HERE = "here"
    AWAY = "away"
    """Not serving, but may come back with everything it had."""
    GONE = "gone"
    """Lease and grace period are over, or it has left: its sessions are lost, or others'."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One worker as it last described itself."""

    id: str
    url: str
    capacity: int = 0
    sessions: int = 0
    warm: int = 0
    phase: Phase = Phase.SERVING
    version: str = ""
    runtime: str = ""
    providers: tuple[str, ...] = ()
    """What sessions can ask for. Empty for a worker of a version without providers."""
    epoch: int = 0
    lapsed_s: float = 0.0
    """How long ago its lease ended; negative while it runs. An outage of Redis does not count."""

    @property
    def room(self) -> int:
        return max(self.capacity - self.sessions, 0)

    @property
    def takes_threads(self) -> bool:
        """Whether it accepts new threads, regardless of room."""
        return self.phase == Phase.SERVING and self.lapsed_s < 0

    @property
    def has_left(self) -> bool:
        """Whether it has said so itself: nobody has to wait for it."""
        return self.phase == Phase.LEFT and self.lapsed_s >= 0

    def excused(self, *, up_s: float, lease_s: float) -> Worker:
        """With a whole lease since the last outage of Redis, which was `up_s` ago."""
        return replace(self, lapsed_s=min(self.lapsed_s, max(up_s - lease_s, 0.0)))

    def presence(self, *, grace_s: float) -> Presence:
        if self.lapsed_s >= grace_s or self.has_left:
            return Presence.GONE
        serves = self.phase in (Phase.SERVING, Phase.DRAINING)
        return Presence.HERE if serves and self.lapsed_s < 0 else Presence.AWAY


def worker_fields(worker: Worker) -> dict[str, Any]:
    """The fields that a worker publishes."""
    fields = asdict(worker)
    del fields["phase"], fields["epoch"], fields["lapsed_s"]
    return {**fields, "state": worker.phase.value, "providers": ",".join(worker.providers)}


def _phase(text: str) -> Phase:
    """An unknown phase of a later version counts as draining: its threads are still served."""
    try:
        return Phase(text)
    except ValueError:
        return Phase.DRAINING


def worker_from(fields: dict[str, str], *, now_ms: int) -> Worker | None:
    """The inverse of worker_fields; None if the fields are missing or invalid."""
    try:
        return Worker(
            id=fields["id"],
            url=fields["url"],
            capacity=int(fields["capacity"]),
            sessions=int(fields["sessions"]),
            warm=int(fields["warm"]),
            phase=_phase(fields["state"]),
            version=fields["version"],
            runtime=fields["runtime"],
            providers=tuple(filter(None, fields.get("providers", "").split(","))),
            epoch=int(fields["epoch"]),
            lapsed_s=(now_ms - int(fields["until"])) / 1000,
        )
    except (KeyError, ValueError):
        return None


def place(
    workers: Sequence[Worker],
    *,
    avoid: Collection[str] = (),
    chance: random.Random,
    full_too: bool = False,
) -> Worker | None:
    """Choose a worker for a new thread, at random, one with more room the more often; None if none
    has room. With `full_too`, full workers count as well.

    The figures are as old as the last heartbeat: always taking the roomiest would send every new
    thread until the next one to the same worker.
    """
    able = [
        worker
        for worker in workers
        if worker.takes_threads and (worker.room or full_too) and worker.id not in avoid
    ]
    if not able:
        return None
    return chance.choices(able, [max(worker.room, 1) for worker in able])[0]
