"""Handlers of a server's requests, by frame kind."""

import json
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from . import frames
from .cells import Cells
from .channels import Feeding, Following
from .command import KEY_LENGTH, Command
from .commands import Commands
from .connection import Connection
from .errors import Refused, refusal
from .file_requests import FileRequests, Jobs, text_of
from .loop import Loop
from .meter import Meter
from .paths import PLACES, in_home
from .state import WORKSPACE
from .stdin import Size
from .tunnels import Tunnels, addresses_of, port_of
from .walk import BEING_RECEIVED

if TYPE_CHECKING:
    from .pause import Hold

MAX_STATE = 64 * 1024
MAX_OUTPUT_LIMIT = 64 << 20
MIN_OUTPUT_LIMIT = 4096
MAX_SIZE = 10000
MAX_PAUSE_S = 120.0
ABILITIES = ("pty", "tree", "tunnel", "files", "watch", "pause", "metadata")
"""What wardens of this protocol version did not always have."""
_USES = (frames.RUN, frames.CODE, frames.PUT, frames.GET, frames.LIST, frames.RENAME,
         frames.CHANGES, frames.PACK, frames.UNPACK, frames.DIAL, frames.MKDIR,
         frames.REMOVE)  # fmt: skip
"""Requests that count as use of the box; monitoring does not."""
_WAIT = (frames.RUN, frames.CODE, frames.RENAME, frames.MKDIR, frames.REMOVE, frames.PACK)
"""Requests that wait while the files of the box are read or written as a whole."""
_WHOLE = (frames.PACK, frames.UNPACK)
"""Those that do so, which wait while files are moved or removed."""

Body = Dict[str, Any]
Handler = Callable[[Connection, int, Body], None]


class Requests:
    """Handles requests. `hello` and `listen` are the warden's own: they decide who owns the box,
    and how it is reached."""

    def __init__(
        self,
        commands: Commands,
        cells: Cells,
        meter: Meter,
        tunnels: Tunnels,
        *,
        loop: Loop,
        box: str,
        build: str,
        hello: Handler,
        listen: Handler,
    ) -> None:
        self._commands = commands
        self._cells = cells
        self._meter = meter
        self._tunnels = tunnels
        self._box = box
        self._build = build
        self._boot = os.urandom(8).hex()
        self._state: Body = {}
        self._holds = 0
        self._paused: Optional[Hold] = None
        """While the box is to do nothing."""
        self._held: List[Callable[[], None]] = []
        """Requests that wait until the files of the box may change again."""
        self._jobs = Jobs(self._serve_waiting)
        of_files = FileRequests(loop, commands, self._jobs)
        self._used_at = self._started_at = time.monotonic()
        self.handlers: Dict[int, Handler] = {
            frames.HELLO: hello,
            frames.LISTEN: listen,
            frames.RUN: self._run,
            frames.ATTACH: self._attach,
            frames.SIGNAL: self._signal,
            frames.STDIN: self._stdin,
            frames.RESIZE: self._resize,
            frames.PUT: of_files.put,
            frames.GET: of_files.get,
            frames.LIST: of_files.list,
            frames.STAT: of_files.stat,
            frames.RENAME: of_files.rename,
            frames.MKDIR: of_files.mkdir,
            frames.REMOVE: of_files.remove,
            frames.WATCH: of_files.watch,
            frames.CHANGES: of_files.changes,
            frames.USAGE: self._usage,
            frames.STATE: self._set_state,
            frames.PING: self._ping,
            frames.CODE: self._run_code,
            frames.CONTEXTS: self._contexts,
            frames.PACK: self._pack,
            frames.UNPACK: self._unpack,
            frames.DIAL: self._dial,
            frames.ACCEPT: self._accept,
            frames.PAUSE: self._pause,
        }

    def serve(self, connection: Connection, kind: int, channel: int, body: Body) -> None:
        if kind in _USES:
            self._used_at = time.monotonic()
        if (kind in _WAIT and self._holds) or (kind in _WHOLE and self._jobs.count):
            self._held.append(lambda: self._serve_held(connection, kind, channel, body))
            return
        try:
            self.handlers[kind](connection, channel, body)
        except Refused as exc:
            connection.refuse(channel, exc.code, str(exc))
        except OSError as exc:
            connection.refuse(channel, refusal(exc).code, str(exc))
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            connection.refuse(channel, "invalid_request", "%s: %s" % (type(exc).__name__, exc))

    def _serve_held(self, connection: Connection, kind: int, channel: int, body: Body) -> None:
        if connection.open:
            self.serve(connection, kind, channel, body)
            connection.pump_soon()

    def about(self, connection: Connection) -> Body:
        """The box's description in the answers to HELLO and STATE."""
        now = time.monotonic()
        return {
            "version": frames.PROTOCOL_VERSION,
            "abilities": list(ABILITIES),
            "build": self._build,
            "box": self._box,
            "boot": self._boot,
            "epoch": connection.epoch,
            "uptime_s": round(now - self._started_at, 3),
            "idle_s": round(self._commands.idle_s(now, self._used_at), 3),
            "ran": self._commands.ran,
            "cwd": self._commands.carrying.state.cwd,
            "state": self._state,
        }

    # Tunnels

    def _dial(self, connection: Connection, channel: int, body: Body) -> None:
        connection.add(channel, self._tunnels.dial(connection, addresses_of(body)))

    def _accept(self, connection: Connection, channel: int, body: Body) -> None:
        connection.add(channel, self._tunnels.accept(connection, port_of(body)))

    # Commands

    def _run(self, connection: Connection, channel: int, body: Body) -> None:
        ident, digest = text_of(body, "command_id"), text_of(body, "digest")
        key = None if body.get("key") is None else text_of(body, "key")
        if len(key or "") > KEY_LENGTH:
            message = "key has %d characters, the limit is %d" % (len(key or ""), KEY_LENGTH)
            raise Refused("invalid_request", message)
        if "\0" in text_of(body, "command"):
            raise Refused("invalid_request", "command contains a NUL character")
        command = self._commands.records.known(ident, key, digest)
        if command is None:
            command = self._commands.start(
                text_of(body, "command"),
                ident=ident,
                key=key,
                digest=digest,
                timeout_s=None if body.get("timeout_s") is None else float(body["timeout_s"]),
                cwd=_folder(body.get("cwd")),
                env=_environment(body.get("env") or {}),
                stdin=bool(body.get("stdin")),
                stdin_open=bool(body.get("stdin_open")),
                output_limit=_output_limit(body),
                terminal=None if body.get("pty") is None else _size(body["pty"]),
                own=bool(body.get("own")),
            )
        self._follow(connection, channel, command, body, live=bool(body.get("follow")))

    def _run_code(self, connection: Connection, channel: int, body: Body) -> None:
        ident, digest = text_of(body, "command_id"), text_of(body, "digest")
        key = None if body.get("key") is None else text_of(body, "key")
        command = self._commands.records.known(ident, key, digest)
        if command is None:
            text_of(body, "code")
            body = dict(body, output_limit=_output_limit(body))
            body["env"] = _environment(body.get("env") or {})
            command = self._cells.start(body, ident=ident, key=key, digest=digest)
        self._follow(connection, channel, command, body, live=bool(body.get("follow")))

    def _contexts(self, connection: Connection, channel: int, body: Body) -> None:
        self._cells.ask(body, connection, channel)

    def _attach(self, connection: Connection, channel: int, body: Body) -> None:
        command = self._command(body)
        self._follow(connection, channel, command, body, live=bool(body.get("follow", True)))

    def _follow(
        self, connection: Connection, channel: int, command: Command, body: Body, *, live: bool
    ) -> None:
        following = Following(
            self._commands, command, offset=max(int(body.get("offset") or 0), 0), live=live,
            at_once=bool(body.get("at_once")),
        )  # fmt: skip
        connection.add(channel, following)

    def _signal(self, connection: Connection, channel: int, body: Body) -> None:
        command = self._command(body)
        number = int(body["signal"])
        if not 1 <= number <= 64:
            raise Refused("invalid_request", "signal %d is not between 1 and 64" % number)
        self._commands.kill(command, number)
        connection.reply(channel, command.summary())

    def _resize(self, connection: Connection, channel: int, body: Body) -> None:
        command = self._command(body)
        command.resize(_size(body))
        connection.reply(channel, command.summary())

    def _stdin(self, connection: Connection, channel: int, body: Body) -> None:
        command = self._command(body)
        stdin = command.stdin
        if stdin is None or not (stdin.to_be_sent or body.get("initial")):
            message = "command %s takes no input: it was started without stdin_open"
            raise Refused("stdin_closed", message % command.ident)
        offset = None if body.get("offset") is None else max(int(body["offset"]), 0)
        command.touched = time.monotonic()
        feeding = Feeding(stdin, ident=command.ident, offset=offset, end=bool(body.get("end")))
        connection.add(channel, feeding)

    def _command(self, body: Body) -> Command:
        return self._commands.records.get(text_of(body, "command_id"))

    # All files

    def _pack(self, connection: Connection, channel: int, body: Body) -> None:
        """All files below `roots`, while nothing in the box runs: what does is paused, for at most
        `pause_s` seconds. With `still`, its disk is copied meanwhile, and what is on it and not
        whole is told."""
        from .tree_channels import Packing  # Imported late to save memory.

        roots = [_root(root) for root in body["roots"]]
        pause_s = min(max(float(body["pause_s"]), 0.0), MAX_PAUSE_S)
        still = body.get("still") is True
        packing = Packing(
            connection, roots, self._commands.carrying.state, self._hold(), pause_s=pause_s,
            receiving=list(BEING_RECEIVED.values()) if still else None,
        )  # fmt: skip
        connection.add(channel, packing)

    def _unpack(self, connection: Connection, channel: int, _body: Body) -> None:
        from .tree_channels import Unpacking  # Imported late to save memory.

        if self._holds:
            raise Refused("conflict", "the files of the box are being read; try again")
        connection.add(channel, Unpacking(self._hold(), self._commands.carrying.replace))

    def _pause(self, connection: Connection, channel: int, body: Body) -> None:
        """Stop what runs until it is to go on: its time limits stand still, and commands wait."""
        if body["paused"] is True and self._paused is None:
            self._paused = self._hold()
            self._commands.stop_clocks()
        elif body["paused"] is False and self._paused is not None:
            hold, self._paused = self._paused, None
            self._commands.start_clocks()
            hold.end()
        connection.reply(channel, {"paused": self._paused is not None})

    def _hold(self) -> "Hold":
        from .pause import Hold  # Imported late to save memory.

        self._holds += 1
        return Hold(self._commands.own_pids, self._let_go)

    def _let_go(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        held, self._held = self._held, []
        for serve in held:
            serve()

    # The box

    def _usage(self, connection: Connection, channel: int, body: Body) -> None:
        used = self._meter.usage(disk=bool(body.get("disk", True)))
        connection.reply(channel, dict(used, **self._commands.totals.read()))

    def _set_state(self, connection: Connection, channel: int, body: Body) -> None:
        """Read or replace the owner's state; the answer includes the known commands."""
        if "set" in body:
            state = body["set"]
            if not isinstance(state, dict) or len(json.dumps(state)) > MAX_STATE:
                message = "set must be an object of at most %d bytes as JSON" % MAX_STATE
                raise Refused("invalid_request", message)
            self._state = state
        commands, more = self._commands.records.summaries()
        about = self.about(connection)
        connection.reply(channel, dict(about, commands=commands, commands_truncated=more))

    def _ping(self, connection: Connection, channel: int, _body: Body) -> None:
        connection.reply(channel, {})


def _root(path: Any) -> str:
    if in_home(str(path)) not in PLACES:
        raise Refused("invalid_path", "a root must be one of %s" % ", ".join(PLACES))
    return in_home(str(path))


def _size(body: Body) -> Size:
    rows, cols = int(body["rows"]), int(body["cols"])
    if not (1 <= rows <= MAX_SIZE and 1 <= cols <= MAX_SIZE):
        raise Refused("invalid_request", "rows and cols must be between 1 and %d" % MAX_SIZE)
    return rows, cols


def _output_limit(body: Body) -> int:
    return min(max(int(body["output_limit"]), MIN_OUTPUT_LIMIT), MAX_OUTPUT_LIMIT)


def _folder(path: Any) -> Optional[str]:
    if path is None:
        return None
    if not isinstance(path, str) or not path or "\0" in path:
        raise Refused("invalid_path", "cwd must be a path: not empty, without NUL characters")
    return os.path.join(WORKSPACE, path)


def _environment(env: Any) -> Dict[str, str]:
    if not isinstance(env, dict):
        raise Refused("invalid_request", "env must be an object of strings")
    for name, value in env.items():
        plain = name.replace("_", "a")
        if not (plain.isascii() and plain.isalnum() and not plain[0].isdigit()):
            raise Refused("invalid_request", "env: %r is not a valid variable name" % name[:64])
        if name.startswith("__sandbox_"):
            message = "env: %s: names starting with __sandbox_ are reserved" % name[:64]
            raise Refused("invalid_request", message)
        if not isinstance(value, str) or "\0" in value:
            message = "env: the value of %s must be a string without NUL characters" % name
            raise Refused("invalid_request", message)
    return env
