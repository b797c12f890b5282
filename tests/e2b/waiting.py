"""Waiting for what happens by itself."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
_Found = TypeVar("_Found")


def eventually(look: Callable[[], _Found]) -> _Found:
    """What look() finds, as soon as that is something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found
