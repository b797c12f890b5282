"""Work with the files of the box that takes longer than one turn of the loop."""

from typing import Any, Callable, Dict, Generator, Optional

from .connection import Connection
from .errors import Refused, internal_error, refusal
from .reporting import report

MAX_JOBS = 32

Work = Generator[None, None, Optional[Dict[str, Any]]]


class Jobs:
    """Does a slice of each job in every turn of the loop, and answers at its end. A job goes on if
    its connection is closed: half of it would be worse than all. on_idle: called when the last has
    ended."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self.count = 0
        self._on_idle = on_idle

    def run(self, connection: Connection, channel: int, work: Work) -> None:
        """The first slice at once. Raises Refused if there are too many."""
        if self.count >= MAX_JOBS:
            message = "%d files or folders are being moved or removed; try again in a moment"
            raise Refused("exhausted", message % self.count)
        self.count += 1
        self._step(connection, channel, work)

    def _step(self, connection: Connection, channel: int, work: Work) -> None:
        try:
            next(work)
        except StopIteration as end:
            done = end.value or {}
            self._end(connection, lambda: connection.reply(channel, done))
        except Refused as exc:
            code, message = exc.code, str(exc)
            self._end(connection, lambda: connection.refuse(channel, code, message))
        except OSError as exc:
            refused = refusal(exc)
            self._end(connection, lambda: connection.refuse(channel, refused.code, str(refused)))
        except Exception as exc:
            report()
            message = internal_error(exc)
            self._end(connection, lambda: connection.refuse(channel, "internal", message))
        else:
            connection.after(0, lambda: self._step(connection, channel, work))

    def _end(self, connection: Connection, answer: Callable[[], None]) -> None:
        self.count -= 1
        if connection.open:
            answer()
            connection.pump_soon()
        if not self.count:
            self._on_idle()
