"""Which worker a new thread goes to. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from sandbox_server.fleet.workers import Worker


def place(
    workers: Sequence[Worker],
    *,
    avoid: Collection[str] = (),
    chance: random.Random,
    full_too: bool = False,
) -> Worker | None:
    """The roomier of two taken by chance, or None where nobody has room; with `full_too`, where
    nobody takes threads at all.

    Figures are as old as the last heartbeat: always taking the roomiest would send every new thread
    of that time to the same worker.
    """
    able = [
        worker
        for worker in workers
        if worker.takes_threads and (worker.room or full_too) and worker.id not in avoid
    ]
    if not able:
        return None
    return max(chance.sample(able, min(2, len(able))), key=lambda worker: worker.room)
