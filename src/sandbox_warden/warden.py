"""The warden itself: who may speak to it, and what it does for them."""

import json
import os
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Optional

from . import files, frames, shell
from .channels import Feeding, Following
from .command import Command
from .commands import Commands
from .connection import Connection
from .door import Door
from .errors import Refused, internal_error, refusal
from .file_channels import MAX_LISTED, Listing, Receiving, Sending
from .frames import decode_json, encode_json
from .loop import READ, Loop
from .meter import Meter
from .records import KEY_LENGTH
from .reporting import report

MAX_CONNECTIONS = 16
MAX_STATE = 64 * 1024
MAX_OUTPUT_LIMIT = 64 << 20
MIN_OUTPUT_LIMIT = 4096
_PR_SET_DUMPABLE = 4
_USES = (frames.RUN, frames.PUT, frames.GET, frames.LIST, frames.RENAME)
"""What counts as use of the box; looking after it does not."""
_HELLO_S = 10.0
_DEADMAN_TICK_S = 5.0


class Warden:
    def __init__(
        self, loop: Loop, door: Door, meter: Meter, *,
        box: str, build: str, deadman_s: float, open_files: int,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._door = door
        self._meter = meter
        self._commands = Commands(loop, meter, open_files=open_files)
        self._connections: List[Connection] = []
        self._box = box
        self._build = build
        self._boot = os.urandom(8).hex()
        self._epoch = 0
        self._state: Dict[str, Any] = {}
        self._deadman_s = deadman_s
        self._heard_at = self._used_at = self._started_at = time.monotonic()
        self._handlers: Dict[int, Callable[[Connection, int, Dict[str, Any]], None]] = {
            frames.HELLO: self._hello,
            frames.RUN: self._run,
            frames.ATTACH: self._attach,
            frames.SIGNAL: self._signal,
            frames.STDIN: self._stdin,
            frames.PUT: self._put,
            frames.GET: self._get,
            frames.LIST: self._list,
            frames.STAT: self._stat,
            frames.RENAME: self._rename,
            frames.USAGE: self._usage,
            frames.STATE: self._set_state,
            frames.PING: self._ping,
        }

    def serve(self) -> None:
        """Be PID 1: reap, listen, and end the box when its owner has been silent for too long."""
        shell.prctl(_PR_SET_DUMPABLE, 0)
        # The kernel drops every signal for PID 1 that has no handler, SIGKILL from inside included.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        woken, wake = os.pipe()
        for fd in (woken, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(woken, READ, lambda _events: self._woken(woken))
        self._door.open(self._connect)
        self._commands.prepare()
        self._watch_owner()
        self._loop.run()

    def _woken(self, woken: int) -> None:
        os.read(woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            try:
                self._reaped(pid, status)
            except Exception:
                report()  # The others have to be waited for all the same.

    def _reaped(self, pid: int, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._commands.stopped(pid)
        else:
            self._commands.reaped(pid, status)

    def _watch_owner(self) -> None:
        """The dead-man's switch. A running command is bounded by its own time limit."""
        self._loop.after(min(_DEADMAN_TICK_S, self._deadman_s / 4), self._watch_owner)
        if not self._commands.running:
            heard = max(self._heard_at, self._commands.finished_at)
            if time.monotonic() - heard > self._deadman_s:
                os._exit(0)

    # Connections

    def _connect(self, read_fd: int, write_fd: int, relay: Optional[socket.socket]) -> None:
        """Raises OSError, with the descriptors still the caller's."""

        def on_close(closed: Connection) -> None:
            self._connections.remove(closed)
            hello.cancel()
            if relay is not None:
                self._loop.unwatch(relay.fileno())
                relay.close()

        if relay is not None:
            self._loop.watch(relay.fileno(), READ, lambda _events: connection.close())
        connection = Connection(self._loop, read_fd, write_fd, self._frame, on_close)
        hello = self._loop.after(
            _HELLO_S, lambda: connection.close() if connection.epoch is None else None
        )
        self._connections.append(connection)
        if len(self._connections) > MAX_CONNECTIONS:
            self._connections[0].close()

    # Frames

    def _frame(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        if connection.epoch is None and kind != frames.HELLO:
            raise frames.FrameError("the first frame has to be a hello")
        if connection.epoch is not None and connection.epoch < self._epoch:
            self._fence(connection, channel)
            return
        self._heard_at = time.monotonic()
        try:
            self._serve_frame(connection, kind, channel, payload)
        except frames.FrameError:
            raise
        except Exception as exc:
            report()
            connection.cancel(channel)
            connection.refuse(channel, "internal", internal_error(exc))

    def _serve_frame(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        source = connection.sources.get(channel)
        if kind == frames.CREDIT:
            if source is not None:
                source.credit(frames.OFFSET.unpack(payload)[0] if len(payload) == 8 else 0)
        elif kind == frames.DATA:
            if source is not None:
                source.data(payload)
        elif kind == frames.EOF:
            if source is not None:
                source.eof()
        elif kind == frames.CANCEL:
            connection.cancel(channel)
        elif kind in self._handlers:
            if source is not None:
                raise frames.FrameError("channel %d is in use" % channel)
            self._request(connection, kind, channel, decode_json(payload))
        elif kind in frames.KINDS:
            raise frames.FrameError("kind %d is not a request" % kind)
        elif kind in frames.REQUEST_KINDS:
            message = "this warden is older than its server and has no request %d" % kind
            connection.refuse(channel, "unsupported", message)

    def _request(
        self, connection: Connection, kind: int, channel: int, body: Dict[str, Any]
    ) -> None:
        if kind in _USES:
            self._used_at = time.monotonic()
        try:
            self._handlers[kind](connection, channel, body)
        except Refused as exc:
            connection.refuse(channel, exc.code, str(exc))
        except OSError as exc:
            connection.refuse(channel, refusal(exc).code, str(exc))
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            connection.refuse(channel, "invalid_request", "%s: %s" % (type(exc).__name__, exc))

    def _fence(self, connection: Connection, channel: int) -> None:
        message = "epoch %d owns this box now" % self._epoch
        connection.refuse(channel, "fenced", message)
        connection.close(after_writing=True)

    def _hello(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        lowest, highest = body.get("versions") or (body["version"], body["version"])
        version, epoch = min(int(highest), frames.PROTOCOL_VERSION), int(body["epoch"])
        if version < max(int(lowest), frames.OLDEST_VERSION):
            spoken = (frames.OLDEST_VERSION, frames.PROTOCOL_VERSION)
            message = "this warden speaks version %d to version %d" % spoken
            connection.refuse(channel, "version", message)
            connection.close(after_writing=True)
            return
        if epoch < self._epoch:
            self._fence(connection, channel)
            return
        self._epoch = connection.epoch = epoch
        if "deadman_s" in body:
            self._deadman_s = max(float(body["deadman_s"]), 1.0)
        about = dict(self._about(), version=version)
        connection.send(encode_json(frames.REPLY, channel, about))

    def _about(self) -> Dict[str, Any]:
        return {
            "version": frames.PROTOCOL_VERSION,
            "build": self._build,
            "box": self._box,
            "boot": self._boot,
            "epoch": self._epoch,
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "idle_s": round(self._idle_s(), 3),
            "ran": self._commands.ran,
            "cwd": self._commands.cwd,
            "state": self._state,
        }

    def _idle_s(self) -> float:
        """How long ago the last command ended or the last file was moved."""
        if self._commands.running:
            return 0.0
        return time.monotonic() - max(self._used_at, self._commands.finished_at)

    # Requests

    def _run(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        ident, digest = _text(body, "command_id"), _text(body, "digest")
        key = None if body.get("key") is None else _text(body, "key")
        if len(key or "") > KEY_LENGTH:
            raise Refused("invalid_request", "a key has at most %d characters" % KEY_LENGTH)
        if "\0" in _text(body, "command"):
            raise Refused("invalid_request", "a command has no NUL")
        command = self._commands.records.known(ident, key, digest)
        if command is None:
            command = self._commands.start(
                _text(body, "command"),
                ident=ident,
                key=key,
                digest=digest,
                timeout_s=None if body.get("timeout_s") is None else float(body["timeout_s"]),
                cwd=_folder(body.get("cwd")),
                env=_environment(body.get("env") or {}),
                stdin=bool(body.get("stdin")),
                stdin_open=bool(body.get("stdin_open")),
                output_limit=min(
                    max(int(body["output_limit"]), MIN_OUTPUT_LIMIT), MAX_OUTPUT_LIMIT
                ),
            )
        self._follow(connection, channel, command, body, live=bool(body.get("follow")))

    def _attach(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        command = self._commands.records.get(_text(body, "command_id"))
        self._follow(connection, channel, command, body, live=bool(body.get("follow", True)))

    def _follow(
        self,
        connection: Connection,
        channel: int,
        command: Command,
        body: Dict[str, Any],
        *,
        live: bool,
    ) -> None:
        offset = max(int(body.get("offset") or 0), 0)
        following = Following(
            connection, channel, self._commands, command,
            offset=offset, live=live, at_once=bool(body.get("at_once")),
        )  # fmt: skip
        connection.add(channel, following)

    def _signal(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        command = self._commands.records.get(_text(body, "command_id"))
        number = int(body["signal"])
        if not 1 <= number <= 64:
            raise Refused("invalid_request", "signal %d does not exist" % number)
        self._commands.kill(command, number)
        connection.send(encode_json(frames.REPLY, channel, command.summary()))

    def _stdin(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        stdin = self._commands.records.get(_text(body, "command_id")).stdin
        if stdin is None or not (stdin.to_be_sent or body.get("initial")):
            message = "the command was not started with its stdin open; it takes no more input"
            raise Refused("stdin_closed", message)
        offset = None if body.get("offset") is None else max(int(body["offset"]), 0)
        feeding = Feeding(connection, channel, stdin, offset=offset, end=bool(body.get("end")))
        connection.add(channel, feeding)

    def _put(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        upload = files.Upload(
            _text(body, "path"), mode=int(body.get("mode", 0o644)) & 0o777, limit=int(body["limit"])
        )
        connection.add(channel, Receiving(channel, upload))

    def _get(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        path, digest = _text(body, "path"), bool(body.get("digest"))
        sending = Sending(channel, path, digest=digest, again=self._turn_of(connection))
        connection.add(channel, sending)

    def _list(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        listing = Listing(
            channel,
            _text(body, "path"),
            recursive=bool(body.get("recursive")),
            limit=min(max(int(body["limit"]), 1), MAX_LISTED),
            again=self._turn_of(connection),
        )
        connection.add(channel, listing)

    def _turn_of(self, connection: Connection) -> Callable[[], None]:
        """For whoever has more to do: when everybody else has had a turn."""
        waiting = False

        def again() -> None:
            nonlocal waiting
            if not waiting:
                waiting = True
                self._loop.after(0, turn)

        def turn() -> None:
            nonlocal waiting
            waiting = False
            connection.pump()

        return again

    def _stat(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        connection.reply(channel, files.describe(_text(body, "path")))

    def _rename(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        replace = body.get("replace") is True
        moved = files.rename(_text(body, "path"), _text(body, "to"), replace=replace)
        connection.reply(channel, moved)

    def _usage(self, connection: Connection, channel: int, _body: Dict[str, Any]) -> None:
        connection.send(encode_json(frames.REPLY, channel, self._meter.usage()))

    def _set_state(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        """Read what the owner left here, or replace it; the commands known come along."""
        if "set" in body:
            state = body["set"]
            if not isinstance(state, dict) or len(json.dumps(state)) > MAX_STATE:
                raise Refused(
                    "invalid_request", "state is an object of at most %d bytes" % MAX_STATE
                )
            self._state = state
        commands, more = self._commands.records.summaries()
        body = dict(self._about(), commands=commands, commands_truncated=more)
        connection.reply(channel, body)

    def _ping(self, connection: Connection, channel: int, _body: Dict[str, Any]) -> None:
        connection.send(encode_json(frames.REPLY, channel, {}))


def _text(body: Dict[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str):
        raise Refused("invalid_request", "%s is not a string" % name)
    return value


def _folder(path: Any) -> Optional[str]:
    if path is None:
        return None
    if not isinstance(path, str) or not path or "\0" in path:
        raise Refused("invalid_path", "not a folder's path")
    return os.path.join(shell.WORKSPACE, path)


def _environment(env: Any) -> Dict[str, str]:
    if not isinstance(env, dict):
        raise Refused("invalid_request", "env is an object of strings")
    for name, value in env.items():
        plain = name.replace("_", "a")
        if not (plain.isascii() and plain.isalnum() and not plain[0].isdigit()):
            raise Refused("invalid_request", "%r is not a variable's name" % name[:64])
        if name.startswith("__sandbox_"):
            raise Refused("invalid_request", "names like %s are reserved" % name[:64])
        if not isinstance(value, str) or "\0" in value:
            raise Refused("invalid_request", "the value of %s is not a string" % name)
    return env
