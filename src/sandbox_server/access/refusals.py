"""When callers are told that they are refused.

Whoever asks again as soon as it is answered would make the server spend its time on refusals, at
the cost of the others. So a refusal is not told at once, and of one caller only so many a second:
further ones wait their turn, and while they wait their connections ask for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

REFUSED_S = 0.5
"""How long any refusal takes."""
PER_S = 20.0
"""How many refusals of one caller are told in a second."""
MOST_S = 10.0
"""The longest that one waits for its turn: below what clients wait for an answer."""
_NAMES = 10_000


class Refusals:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}
        """By caller: when the next one may be told."""

    def wait_s(self, name: str) -> float:
        """How long to wait before this caller is told. Call it once for each refusal."""
        now = self._clock()
        at = min(max(now + REFUSED_S, self._next.get(name, 0.0)), now + MOST_S)
        if name not in self._next and len(self._next) >= _NAMES:
            self._next = {each: turn for each, turn in self._next.items() if turn > now}
        self._next[name] = at + 1 / PER_S
        return at - now
