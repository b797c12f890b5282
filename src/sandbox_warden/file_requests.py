"""Handlers of a server's requests about files, and work that takes more than a turn."""

from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, Optional

from . import files, metadata
from .commands import Commands
from .connection import Connection
from .errors import Refused, internal_error, refusal, report
from .file_channels import MAX_LISTED, Listing, Receiving, Sending
from .loop import Loop
from .marks import file_clock, marked
from .uploads import Upload
from .walk import MAX_DEPTH

if TYPE_CHECKING:
    from .watching import Watches

Body = Dict[str, Any]
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
        answer: Dict[str, Any] = {}
        refused: Optional[Refused] = None
        try:
            next(work)
            connection.after(0, lambda: self._step(connection, channel, work))
            return
        except StopIteration as end:
            answer = end.value or {}
        except Refused as exc:
            refused = exc
        except OSError as exc:
            refused = refusal(exc)
        except Exception as exc:
            report()
            refused = Refused("internal", internal_error(exc))
        self.count -= 1
        if connection.open:
            if refused is None:
                connection.reply(channel, answer)
            else:
                connection.refuse(channel, refused.code, str(refused))
            connection.pump_soon()
        if not self.count:
            self._on_idle()


class FileRequests:
    def __init__(self, loop: Loop, commands: Commands, jobs: Jobs) -> None:
        self._loop = loop
        self._commands = commands
        self._jobs = jobs
        self._watches: Optional[Watches] = None

    def put(self, connection: Connection, channel: int, body: Body) -> None:
        upload = Upload(
            text_of(body, "path"),
            mode=int(body.get("mode", 0o644)) & 0o777,
            limit=int(body["limit"]),
            about=metadata.checked(body.get("metadata") or {}),
        )
        connection.add(channel, Receiving(upload))

    def get(self, connection: Connection, channel: int, body: Body) -> None:
        path, digest = text_of(body, "path"), bool(body.get("digest"))
        connection.add(channel, Sending(path, digest=digest))

    def list(self, connection: Connection, channel: int, body: Body) -> None:
        listing = Listing(text_of(body, "path"), depth=_depth(body), limit=_limit(body))
        connection.add(channel, listing)

    def changes(self, connection: Connection, channel: int, body: Body) -> None:
        """The files that a command marked; without `marked_only` also those changed since its
        start, or in the last `age_s` seconds."""
        from .changes import Changes  # Imported late to save memory.

        ident = body.get("command_id")
        since: Optional[float] = None
        if body.get("age_s") is not None:
            since = file_clock() - float(body["age_s"])
        elif not body.get("marked_only"):
            since = self._commands.records.get(text_of(body, "command_id")).started_at
        marks = [] if ident is None else marked(text_of(body, "command_id"))
        connection.add(channel, Changes(marks, since, limit=_limit(body)))

    def stat(self, connection: Connection, channel: int, body: Body) -> None:
        follow = body.get("follow") is True
        connection.reply(channel, files.describe(text_of(body, "path"), follow=follow))

    def mkdir(self, connection: Connection, channel: int, body: Body) -> None:
        connection.reply(channel, files.make_folder(text_of(body, "path")))

    def rename(self, connection: Connection, channel: int, body: Body) -> None:
        from .moving import rename  # Imported late to save memory.

        replace = body.get("replace") is True
        moving = rename(text_of(body, "path"), text_of(body, "to"), replace=replace)
        self._jobs.run(connection, channel, moving)

    def remove(self, connection: Connection, channel: int, body: Body) -> None:
        from .removing import remove  # Imported late to save memory.

        removing = remove(text_of(body, "path"), recursive=body.get("recursive") is not False)
        self._jobs.run(connection, channel, removing)

    def watch(self, connection: Connection, channel: int, body: Body) -> None:
        """`start` a watch, `read` what came after a position, or `end` it."""
        from .watch_log import WatchReading  # Imported late to save memory.
        from .watching import Watches

        if self._watches is None:
            self._watches = Watches(self._loop)
        if body["op"] == "start":
            recursive = body.get("recursive") is True
            starting = self._watches.start(text_of(body, "path"), recursive=recursive)
            self._jobs.run(connection, channel, starting)
        elif body["op"] == "read":
            watch = self._watches.get(text_of(body, "watch_id"))
            after, wait_s = int(body["after"]), float(body.get("wait") or 0)
            reading = WatchReading(connection, watch, after=after, wait_s=wait_s)
            connection.add(channel, reading)
        elif body["op"] == "end":
            ended = self._watches.end(text_of(body, "watch_id"))
            connection.reply(channel, {"ended": ended})
        else:
            raise Refused("invalid_request", "op must be start, read or end")


def text_of(body: Body, name: str) -> str:
    value = body[name]
    if not isinstance(value, str):
        raise Refused("invalid_request", "%s must be a string" % name)
    return value


def _limit(body: Body) -> int:
    return min(max(int(body["limit"]), 1), MAX_LISTED)


def _depth(body: Body) -> int:
    """Of a listing: how many folders in folders, the one that is listed included."""
    if body.get("depth") is None:
        return MAX_DEPTH if body.get("recursive") else 1
    return min(max(int(body["depth"]), 1), MAX_DEPTH)
