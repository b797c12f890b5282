"""SIGINT and SIGTERM of a server that is not serving yet.

Held back from the first line of the program on (see sandbox_sdk.cli.main), they are not lost: the
first process of a container would not even notice them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def hold() -> None:
    """Until `heed`: also in children that are forked meanwhile."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def heed() -> None:
    """What came meanwhile comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@contextlib.contextmanager
def stoppable(stop: asyncio.Event, *, finish: bool) -> Iterator[None]:
    """Around all that a server does. A signal sets `stop`, until the server itself handles them.

    finish: its start goes on nevertheless, as it has to find the boxes that it is to destroy.
    Otherwise it is cancelled, and whoever asked finds the block left.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def told() -> None:
        stop.set()
        if not finish:
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, told)
    heed()
    try:
        yield
    except asyncio.CancelledError:
        if finish or not stop.is_set() or task.uncancel():
            raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
