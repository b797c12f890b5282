"""The warden: PID 1 of the box, its connections and its dead-man's switch."""

import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import frames
from .cells import Cells
from .commands import Commands
from .connection import Connection, Wire
from .door import Door
from .errors import Refused, internal_error, report
from .frames import decode_json
from .loop import READ, Loop
from .meter import Meter
from .requests import Requests
from .tunnels import Tunnels

if TYPE_CHECKING:
    from .port import Port

MAX_CONNECTIONS = 16
_HELLO_S = 10.0
_DEADMAN_TICK_S = 15.0
"""Idle boxes do little else: with 5 s, 2,000 of them took 6 % of a core, now 3."""


class Warden:
    def __init__(
        self, loop: Loop, door: Door, meter: Meter, *,
        box: str, build: str, deadman_s: float, open_files: int,
        nursery: Optional[Tuple[int, socket.socket]] = None, port: Optional[socket.socket] = None,
    ) -> None:  # fmt: skip
        """nursery: one that was forked already. port: bound to a TCP port, at which the warden
        listens once it is asked to."""
        self._loop = loop
        self._door = door
        self._bound = port
        self._port: Optional[Port] = None
        self._commands = Commands(loop, meter, open_files=open_files, nursery=nursery)
        self._requests = Requests(
            self._commands, Cells(loop, self._commands, meter), meter, Tunnels(loop),
            loop=loop, box=box, build=build, hello=self._hello, listen=self._listen,
        )  # fmt: skip
        self._connections: List[Connection] = []
        self._epoch = 0
        self._deadman_s = deadman_s
        self._heard_at = time.monotonic()

    def serve(self) -> None:
        """Run as PID 1: reap children, accept streams, and end the box if its owner is silent."""
        # The kernel drops signals to PID 1 without a handler, even SIGKILL from inside the box.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # gVisor's does not, and a kubelet asks a pod to end long before it has to.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        woken, wake = os.pipe()
        for fd in (woken, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(woken, READ, lambda _events: self._woken(woken))
        self._door.open(self._connect)
        self._commands.shells.prepare()
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
                if os.WIFSTOPPED(status):
                    self._commands.shells.stopped(pid)
                else:
                    self._commands.shells.reaped(pid, status)
            except Exception:
                report()  # The others still have to be reaped.

    def _watch_owner(self) -> None:
        """The dead-man's switch. Waits for running commands that have a time limit; one without
        would keep the box for ever."""
        self._loop.after(min(_DEADMAN_TICK_S, self._deadman_s / 4), self._watch_owner)
        if not any(command.timer is not None for command in self._commands.running):
            heard = max(self._heard_at, self._commands.finished_at)
            if time.monotonic() - heard > self._deadman_s:
                os._exit(0)

    def _connect(self, read_fd: int, write_fd: int, relay: Optional[socket.socket]) -> None:
        """Raises OSError; the caller then still owns the descriptors."""
        self._serve(Wire(read_fd, write_fd), relay)

    def _serve(self, wire: Wire, relay: Optional[socket.socket] = None) -> None:

        def on_close(closed: Connection) -> None:
            self._connections.remove(closed)
            hello.cancel()
            if relay is not None:
                self._loop.unwatch(relay.fileno())
                relay.close()

        if relay is not None:
            self._loop.watch(relay.fileno(), READ, lambda _events: connection.close())
        connection = Connection(self._loop, wire, self._frame, on_close)
        hello = self._loop.after(
            _HELLO_S, lambda: connection.close() if connection.epoch is None else None
        )
        self._connections.append(connection)
        if len(self._connections) > MAX_CONNECTIONS:
            self._connections[0].close()

    def _frame(self, connection: Connection, kind: int, channel: int, payload: bytes) -> None:
        if connection.epoch is None and kind not in (frames.HELLO, frames.LISTEN):
            raise frames.FrameError("frame of kind %d before HELLO" % kind)
        if connection.epoch is not None and connection.epoch < self._epoch:
            self._fence(connection, channel, connection.epoch)
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
        elif kind in self._requests.handlers:
            if source is not None:
                raise frames.FrameError("request %d on busy channel %d" % (kind, channel))
            self._requests.serve(connection, kind, channel, decode_json(payload))
        elif kind in frames.KINDS:
            raise frames.FrameError("frame of kind %d, which is not a request" % kind)
        elif kind in frames.REQUEST_KINDS:
            message = "this warden is older than its server and does not support request %d" % kind
            connection.refuse(channel, "unsupported", message)

    def _hello(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        lowest, highest = body.get("versions") or (body["version"], body["version"])
        version, epoch = min(int(highest), frames.PROTOCOL_VERSION), int(body["epoch"])
        if version < max(int(lowest), frames.OLDEST_VERSION):
            spoken = (frames.OLDEST_VERSION, frames.PROTOCOL_VERSION)
            message = "this warden supports protocol versions %d to %d" % spoken
            connection.refuse(channel, "version", message)
            connection.close(after_writing=True)
            return
        if epoch < self._epoch:
            self._fence(connection, channel, epoch)
            return
        self._epoch = connection.epoch = epoch
        if "deadman_s" in body:
            self._deadman_s = max(float(body["deadman_s"]), 1.0)
        connection.reply(channel, dict(self._requests.about(connection), version=version))

    def _listen(self, connection: Connection, channel: int, body: Dict[str, Any]) -> None:
        """Who says this has an exec into the box, or a stream already: see port.py."""
        if self._bound is None:
            raise Refused("unsupported", "this box was made without a port for streams")
        if self._port is None:
            self._port = self._open_port(self._bound)
        self._port.admit(bytes.fromhex(body["key"]), str(body["certificate"]))
        connection.reply(channel, {"port": self._bound.getsockname()[1]})

    def _open_port(self, bound: socket.socket) -> "Port":
        try:  # Not before somebody asks: what it imports takes some megabytes.
            from .port import Port
        except ImportError as exc:
            raise Refused("unsupported", "the python3 of this image has no TLS: %s" % exc) from None
        return Port(self._loop, bound, self._serve)

    def _fence(self, connection: Connection, channel: int, epoch: int) -> None:
        message = "epoch %d owns this box now, not %d" % (self._epoch, epoch)
        connection.refuse(channel, "fenced", message)
        connection.close(after_writing=True)
