"""Cells of code: commands whose shell is a Jupyter kernel, reached through the bridge.

A cell is a command like any other: it has an id, an idempotency key, a log and a result, is
followed and listed, and outlives the server. The bridge is a command too, but none of the user's:
it is not listed, and does not keep the box from being idle.
"""

import json
import os
import pkgutil
import shutil
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import frames
from .command import Command
from .commands import Commands
from .connection import Connection
from .errors import Refused
from .frames import Decoder, FrameError, decode_json, encode_json
from .loop import Loop
from .marks import take_marks
from .meter import Meter
from .output import RESULT, STDERR, STDOUT, OutputLog

BRIDGE = "kernel-bridge"
"""Command id of the bridge, also in the environment of everything that its kernels start."""
RESULT_LIMIT = 4 << 20
"""Bytes of the results of one cell."""
PATIENCE_S = 90.0
"""How long past its time limit a cell may take before the bridge is given up: a kernel has 60 s to
start, and 3 s to end after an interrupt."""
SOURCES = "bridge.json"
MODULES = (
    "errors", "frames", "kernel_launch", "kernel_specs", "kernel_process", "kernel_output",
    "kernel_contexts", "kernel_bridge",
)  # fmt: skip
_BOOT = """
import json, os, sys, types
package = sys.modules["sandbox_warden"] = types.ModuleType("sandbox_warden")
package.__path__ = []
text = b""
while len(text) < int(sys.argv[1]):
    text += os.read(0, int(sys.argv[1]) - len(text))
package.sources = dict(json.loads(text))
for name, source in package.sources.items():
    if name == "kernel_launch":
        continue
    module = types.ModuleType("sandbox_warden." + name)
    module.__package__ = "sandbox_warden"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
sys.modules["sandbox_warden.kernel_bridge"].main()
"""
_STREAMS = {frames.STDOUT: STDOUT, frames.STDERR: STDERR, frames.RESULT: RESULT}
_LAST_WORDS = 1000

Body = Dict[str, Any]


class _BridgeOutput(OutputLog):
    """Takes what the bridge writes: frames on stdout, and on stderr what it dies of."""

    def __init__(self, on_frames: Callable[[bytes], None]) -> None:
        super().__init__(4096)
        self._on_frames = on_frames

    def append(self, stream: int, data: bytes) -> None:
        if stream == STDOUT:
            self._on_frames(data)
        else:
            super().append(stream, data)

    def last_words(self) -> str:
        found = self.read(max(self.size - _LAST_WORDS, 0), _LAST_WORDS)
        return "" if found is None else found[2].decode("utf-8", "replace").strip()


class Cells:
    """The cells of the box, and its bridge."""

    def __init__(self, loop: Loop, commands: Commands, meter: Meter) -> None:
        self._loop = loop
        self._commands = commands
        self._meter = meter
        self._bridge: Optional[Command] = None
        self._log = _BridgeOutput(self._on_data)
        self._decoder = Decoder()
        self._number = 0
        self._cells: Dict[int, Command] = {}
        self._asked: Dict[int, Tuple[Connection, int]] = {}
        # Read now: the file that the warden came in may be gone later.
        self._sources = bridge_sources()
        self._contexts: List[Body] = []
        """Those that are lost if the bridge is."""

    # Requests

    def start(self, body: Body, *, ident: str, key: Optional[str], digest: str) -> Command:
        """Begin a cell."""
        text_limit = int(body["output_limit"])
        command = Command(
            ident, digest, OutputLog(4 * (text_limit + RESULT_LIMIT)), time.monotonic()
        )
        command.key = key
        command.oom_before = self._meter.oom_kills()
        command.tells_changes = bool(body.get("changes"))
        self._commands.begin_cell(command, lambda number: self._signal(command, number))
        timeout_s = None if body.get("timeout_s") is None else float(body["timeout_s"])
        if timeout_s is not None:
            command.timer = self._loop.after(timeout_s + PATIENCE_S, self._give_up)
        number = self._next_number()
        self._cells[number] = command
        wanted = ("code", "language", "context_id", "env", "kernels", "cwd")
        request = {name: body[name] for name in wanted if body.get(name) is not None}
        request.update(command_id=ident, timeout_s=timeout_s, output_limit=text_limit)
        self._send(encode_json(frames.CODE, number, dict(request, result_limit=RESULT_LIMIT)))
        return command

    def ask(self, body: Body, connection: Connection, channel: int) -> None:
        """Something about contexts. The answer comes later."""
        if self._bridge is None and body.get("op") == "list":
            lost = [dict(each, state="lost") for each in self._contexts]
            connection.reply(channel, {"contexts": lost})
            return
        if self._bridge is None and body.get("op") == "env":
            connection.reply(channel, {"contexts": []})  # It will have them from its shell.
            return
        number = self._next_number()
        self._asked[number] = connection, channel
        self._send(encode_json(frames.CONTEXTS, number, body))

    def _signal(self, command: Command, number: int) -> None:
        body = {"command_id": command.ident, "signal": number}
        self._send(encode_json(frames.SIGNAL, 0, body))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # The bridge

    def _send(self, data: bytes) -> None:
        if self._bridge is None:
            self._start_bridge()
        bridge = self._bridge
        if bridge is not None and bridge.stdin is not None:
            try:
                bridge.stdin.take(data, offset=None, end=False)
            except Refused:
                pass  # It is dying: its end is told to all.

    def _start_bridge(self) -> None:
        sent = self._sources
        python = shutil.which("python3") or "python3"
        self._log = _BridgeOutput(self._on_data)
        self._decoder = Decoder()
        self._bridge = self._commands.start_service(
            "exec %s -c '%s' %d" % (python, _BOOT.replace("'", "'\\''"), len(sent)),
            ident=BRIDGE,
            env={"SANDBOX_BRIDGE_PATH": os.environ.get("PYTHONPATH", "")},
            log=self._log,
            on_end=self._bridge_ended,
        )
        if self._bridge is not None and self._bridge.stdin is not None:
            self._bridge.stdin.take(sent, offset=None, end=False)
            if self._contexts:
                body = {"op": "remember", "contexts": self._contexts}
                self._send(encode_json(frames.CONTEXTS, 0, body))

    def _give_up(self) -> None:
        """A cell is long over its time, so the bridge does not answer any more."""
        if self._bridge is not None:
            self._commands.kill(self._bridge, 9)

    def _bridge_ended(self, result: Body) -> None:
        self._bridge = None
        words = self._log.last_words() or "it was killed by a process of this sandbox"
        code = result["exit_code"]
        why = "the process that keeps the kernels ended with exit code %s: %s" % (code, words)
        for number in list(self._cells):
            self._lose(number, why)
        asked, self._asked = self._asked, {}
        for connection, channel in asked.values():
            connection.refuse(channel, "context_lost", "%s; try again" % why)
            connection.pump_soon()

    def _lose(self, number: int, why: str) -> None:
        command = self._cells[number]
        error = {"name": "ContextLost", "value": why[:2000], "traceback": []}
        end = {"context_state": "lost", "output_bytes": 0, "truncated": False}
        for record in (dict(error, type="error"), dict(end, type="end")):
            command.log.append(RESULT, json.dumps(record).encode() + b"\n")
        self._end(number, {"exit_code": 137, "reason": "killed", "timed_out": False})

    def _on_data(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(*frame)
        except (FrameError, KeyError, TypeError, ValueError):
            # Something else writes to its pipe: nothing it says can be believed any more.
            self._give_up()

    def _on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind in _STREAMS:
            command = self._cells.get(number)
            if command is not None:
                command.wrote(_STREAMS[kind], payload)
        elif kind == frames.CONTEXTS:
            self._contexts = [dict(each) for each in decode_json(payload)["contexts"]]
        elif number in self._cells:
            self._on_end(number, kind, decode_json(payload))
        elif number in self._asked:
            connection, channel = self._asked.pop(number)
            body = decode_json(payload)
            if kind == frames.REPLY:
                connection.reply(channel, body)
            else:
                connection.refuse(channel, str(body["code"]), str(body["message"]))
            connection.pump_soon()

    def _on_end(self, number: int, kind: int, body: Body) -> None:
        if kind == frames.REPLY:
            self._end(number, body)
        else:
            self._cells[number].refused = Refused(str(body["code"]), str(body["message"]))
            self._end(number, {"exit_code": 1, "reason": None, "timed_out": False})

    def _end(self, number: int, body: Body) -> None:
        command = self._cells.pop(number)
        reason = body["reason"]
        kills = self._meter.oom_kills()
        if reason == "killed" and kills is not None and kills > (command.oom_before or 0):
            reason = "oom"
        command.timed_out = bool(body["timed_out"])
        take_marks(command.ident, BRIDGE)
        self._commands.finish_cell(command, exit_code=int(body["exit_code"]) & 255, reason=reason)


def bridge_sources() -> bytes:
    """The modules of the bridge as it reads them. In a box the warden's own are compiled, so they
    came in a file besides."""
    try:
        packed = pkgutil.get_data(__package__, SOURCES)
    except OSError:
        packed = None
    return packed or json.dumps([(name, _source(name)) for name in MODULES]).encode()


def _source(name: str) -> str:
    return (pkgutil.get_data(__package__, name + ".py") or b"").decode()
