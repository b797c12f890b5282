"""Channels that wait for what changes in a watched folder."""

from typing import Optional

from .connection import Connection, Source
from .frames import REPLY, encode_error, encode_json
from .watch_log import Watch

MAX_WAIT_S = 30.0


class WatchReading(Source):
    """Answers as soon as something has changed after a position, or with nothing after `wait_s`."""

    def __init__(
        self, connection: Connection, channel: int, watch: Watch, *, after: int, wait_s: float
    ) -> None:
        self._channel = channel
        self._watch = watch
        self._after = after
        self._due = False
        self._pump = connection.pump_soon
        watch.read(after)  # Raises Refused.
        self._timer = connection.after(min(max(wait_s, 0.0), MAX_WAIT_S), self._expire)
        watch.waiting.add(self._wake)

    def pull(self) -> Optional[bytes]:
        if self._watch.ended:
            self.done = True
            return encode_error(self._channel, "watch_not_found", "the watch was ended meanwhile")
        if self._watch.position == self._after and not self._due:
            return None
        self.done = True
        return encode_json(REPLY, self._channel, self._watch.read(self._after))

    def _wake(self) -> None:
        self._pump()

    def _expire(self) -> None:
        self._due = True
        self._pump()

    def closed(self) -> None:
        self._timer.cancel()
        self._watch.waiting.discard(self._wake)
        self._watch.used()
