"""Contexts: each has a kernel, and runs one cell after the other in it."""

import os
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from . import frames
from .errors import Refused
from .kernel_output import CellOutput
from .kernel_process import START_S, Kernel, Message
from .kernel_specs import Spec

GRACE_S = 3.0
"""How long a cell may take to end after it was interrupted, before its kernel is killed."""
_BEGIN_S = 1.0
"""How long an interrupt waits until its kernel says that it runs the cell: one that comes before is
lost in ipykernel. A kernel may never say it, as its outputs are closed."""
_IDLE_S = 1.0
"""How long after its reply a kernel may take to say that it is idle, and the other way round. One
whose outputs were closed by its own code never says it, and ipykernel does not reply if it was
interrupted just before the code or just after."""
_SETTLE_S = 0.05
"""How long to wait for output after a kernel has said that it is idle, unless it is ipykernel.
Deno's sends what was printed from another task, after that in one of 150 cells."""
_LATE = 64 * 1024
"""Bytes of text that background threads write between two cells."""
TIMEOUT_CODE, INTERRUPTED_CODE = 124, 130

_SET_ENV = (
    '__import__("sys").__dict__.__setitem__("_sandbox_env",'
    ' {{k: __import__("os").environ.get(k) for k in {env}}}) or'
    ' __import__("os").environ.update({env})'
)
_UPDATE_ENV = '__import__("os").environ.update(%s)'
_RESTORE_ENV = (
    '[__import__("os").environ.pop(k, None) if v is None else'
    ' __import__("os").environ.__setitem__(k, v)'
    ' for k, v in __import__("sys").__dict__.pop("_sandbox_env", {}).items()]'
)

Body = Dict[str, Any]

_INTERRUPTED: Body = {"status": "error", "ename": "KeyboardInterrupt", "evalue": ""}


class Cell:
    """One run of code."""

    def __init__(
        self, body: Body, output: CellOutput, done: Callable[[Body], None], refuse: Any
    ) -> None:
        self.ident = str(body["command_id"])
        self.code = str(body["code"])
        self.env: Dict[str, str] = dict(body.get("env") or {})
        timeout_s = body.get("timeout_s")
        self.timeout_s = None if timeout_s is None else float(timeout_s)
        self.output = output
        self.done = done
        """Called with how it ended."""
        self.refuse = refuse
        self.deadline: Optional[float] = None
        self.steps: Deque[Tuple[str, bool]] = deque()
        """What is still to be executed, and whether it is the code itself."""
        self.request = ""
        """The id of the request that its kernel works on."""
        self.main = ""
        """The id of the request with its code."""
        self.reply: Optional[Body] = None
        self.idle_by: Optional[float] = None
        self.is_idle = False
        self.running = False
        """Whether its code is being executed."""
        self.interrupted: Optional[float] = None
        self.signalled = False
        """Whether its kernel has been told of the interrupt."""
        self.reason: Optional[str] = None
        self.failed = False
        self.count: Optional[int] = None
        self.state = "live"
        """Of its context: live, created or restarted."""

    def begin(self, now: float) -> None:
        if self.timeout_s is not None:
            self.deadline = now + self.timeout_s
        if self.env:
            self.steps.append((_SET_ENV.format(env=repr(self.env)), False))
        self.steps.append((self.code, True))
        if self.env:
            self.steps.append((_RESTORE_ENV, False))


class Context:
    def __init__(
        self, ident: str, spec: Optional[Spec], language: str, *, cwd: str, default: bool
    ) -> None:
        self.ident = ident
        self.spec = spec
        self.language = language
        self.cwd = cwd
        self.default = default
        self.kernel: Optional[Kernel] = None
        self.waiting: Deque[Cell] = deque()
        self.cell: Optional[Cell] = None
        self.count = 0
        self.used = False
        self.lost: Optional[str] = None
        """Why its kernel is gone, where it has ended by itself."""
        self._late = ""
        self.new_env: Dict[str, str] = {}
        """Variables of the session that its kernel has not got yet: they became known later."""

    def about(self) -> Body:
        kernel = self.kernel
        state = "lost" if kernel is None else "busy" if self.cell else "idle"
        if kernel is not None and not kernel.ready:
            state = "starting"
        return {
            **self.remembered(),
            "kernel": self.spec.name if self.spec else "",
            "state": state,
            "running": self.cell.ident if self.cell else None,
            "waiting": len(self.waiting),
            "execution_count": self.count,
            "memory_bytes": kernel.memory_bytes() if kernel else None,
        }

    def remembered(self) -> Body:
        """What a later bridge has to know of it."""
        return {
            "context_id": self.ident,
            "language": self.language,
            "cwd": self.cwd,
            "default": self.default,
        }

    # Cells

    def add(self, cell: Cell) -> None:
        if self.lost is not None:
            cell.state = "restarted"
        elif not self.used:
            cell.state = "created"
        self.used, self.lost = True, None
        if cell.timeout_s is not None:
            cell.deadline = time.monotonic() + cell.timeout_s + START_S
        self.waiting.append(cell)
        self.next_cell()

    def next_cell(self) -> None:
        kernel = self.kernel
        if self.cell is not None or kernel is None or not kernel.ready or not self.waiting:
            return
        cell = self.cell = self.waiting.popleft()
        cell.begin(time.monotonic())
        if self.new_env:
            cell.steps.appendleft((_UPDATE_ENV % repr(self.new_env), False))
            self.new_env = {}
        if self._late:
            cell.output.record({"type": "late", "text": self._late})
            self._late = ""
        self._step(cell)

    def _step(self, cell: Cell) -> None:
        assert self.kernel is not None
        code, main = cell.steps.popleft()
        cell.reply, cell.is_idle, cell.idle_by = None, False, None
        cell.request = self.kernel.send(
            "execute_request",
            {
                "code": code,
                "silent": not main,
                "store_history": main,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": True,
            },
        )
        if main:
            cell.main = cell.request

    # What the kernel says

    def on_shell(self, message: Message) -> None:
        kernel, cell = self.kernel, self.cell
        assert kernel is not None
        if kernel.takes_for_start(message, iopub=False):
            self.next_cell()
        elif message.kind == "execute_reply" and cell is not None and cell.reply is None:
            if message.parent_id != cell.request:
                return
            cell.reply = message.content
            cell.idle_by = time.monotonic() + _IDLE_S
            self._settle(cell)

    def on_output(self, message: Message) -> None:
        kernel, cell = self.kernel, self.cell
        assert kernel is not None
        if kernel.takes_for_start(message, iopub=True):
            self.next_cell()
            return
        if cell is None or message.parent_id != cell.request:
            self._too_late(message)
            return
        if message.kind == "status":
            if message.content.get("execution_state") == "idle":
                cell.is_idle = True
                self._settle(cell)
        elif message.kind == "execute_input" and cell.request == cell.main:
            cell.running = True
            if cell.interrupted is not None and not cell.signalled:
                self._signal(cell)
        elif cell.request == cell.main:
            _show(cell, message)

    def _too_late(self, message: Message) -> None:
        if message.kind == "stream" and self.count and len(self._late) < _LATE:
            self._late = (self._late + str(message.content.get("text", "")))[:_LATE]

    def _settle(self, cell: Cell) -> None:
        """Go on if both its reply and the end of its output are there."""
        if cell.reply is None or not cell.is_idle:
            if cell.reply is None and cell.signalled:
                cell.idle_by = time.monotonic() + _IDLE_S
            return
        if self.spec is None or self.spec.is_ipykernel:
            self._replied(cell, cell.reply)
        else:
            cell.idle_by = time.monotonic() + _SETTLE_S

    def _replied(self, cell: Cell, reply: Body) -> None:
        if cell.request == cell.main:
            cell.running = False
            count = reply.get("execution_count")
            if isinstance(count, int):
                cell.count = self.count = count
            if reply.get("status") == "error" and not cell.failed:
                cell.failed = True
                cell.output.error(reply)
            cell.failed = cell.failed or reply.get("status") not in ("ok", "error")
        if cell.steps:
            self._step(cell)
            return
        self.cell = None
        self._end(cell, cell.reason, _code(cell))
        self.next_cell()

    def _end(self, cell: Cell, reason: Optional[str], code: int) -> None:
        output = cell.output
        output.finish()
        state = "lost" if self.kernel is None else cell.state
        facts = {
            "context_id": self.ident,
            "language": self.language,
            "context_state": state,
            "execution_count": cell.count,
            "output_bytes": output.size,
            "truncated": bool(output.left_out or output.results_left_out),
        }
        output.record(dict(facts, type="end"))
        cell.done({"exit_code": code, "reason": reason, "timed_out": reason == "timeout"})

    # Time and ends

    def interrupt(self, cell: Cell, reason: str) -> None:
        if cell is not self.cell:
            self.waiting.remove(cell)
            text = "it was not begun: another cell of its context was running"
            cell.output.error({"ename": "NotRun", "evalue": text})
            self._end(cell, reason, TIMEOUT_CODE if reason == "timeout" else INTERRUPTED_CODE)
        elif cell.interrupted is None and self.kernel is not None:
            cell.interrupted = time.monotonic()
            cell.reason = cell.reason or reason
            if cell.running:
                self._signal(cell)

    def _signal(self, cell: Cell) -> None:
        assert self.kernel is not None
        cell.interrupted, cell.signalled = time.monotonic(), True
        self.kernel.interrupt()

    def tick(self, now: float) -> Optional[float]:
        """Do what is due. When to look again."""
        kernel = self.kernel
        if kernel is not None and not kernel.ready:
            if now - kernel.started > START_S:
                kernel.kill()
            kernel.ask_until_ready(now)
        for cell in [*self.waiting, *([self.cell] if self.cell else [])]:
            if cell.deadline is not None and now >= cell.deadline and cell.interrupted is None:
                self.interrupt(cell, "timeout")
        if self.cell is not None and kernel is not None:
            self._tick_cell(self.cell, kernel, now)
        return self._next_tick()

    def _tick_cell(self, cell: Cell, kernel: Kernel, now: float) -> None:
        if cell.interrupted is not None and now >= cell.interrupted + _grace_s(cell):
            if cell.signalled:
                cell.interrupted = now
                kernel.kill()
            else:
                self._signal(cell)
        if cell.idle_by is not None and now >= cell.idle_by:
            self._replied(cell, cell.reply or _INTERRUPTED)

    def _next_tick(self) -> Optional[float]:
        times: List[float] = []
        if self.kernel is not None and not self.kernel.ready:
            times.append(self.kernel.next_ask())
        if self.cell is not None:
            if self.cell.interrupted is not None:
                times.append(self.cell.interrupted + _grace_s(self.cell))
            elif self.cell.deadline is not None:
                times.append(self.cell.deadline)
            if self.cell.idle_by is not None:
                times.append(self.cell.idle_by)
        times += [cell.deadline for cell in self.waiting if cell.deadline is not None]
        return min(times, default=None)

    def kernel_ended(self, code: int) -> None:
        """Its kernel has died: tell the cell that ran, and those that waited for it."""
        kernel, self.kernel = self.kernel, None
        assert kernel is not None
        kernel.close()
        self.lost = "its kernel ended with exit code %d" % code
        was_ready, words = kernel.ready, kernel.last_words
        cell, self.cell = self.cell, None
        waiting, self.waiting = list(self.waiting), deque()
        if cell is not None:
            reason = cell.reason or ("killed" if code > 128 else "exited")
            why = "the kernel ended with exit code %d; variables of this context are lost" % code
            cell.output.error({"ename": "ContextLost", "evalue": why})
            self._end(cell, reason, TIMEOUT_CODE if reason == "timeout" else code or 1)
        for each in waiting:
            if was_ready:
                why = "context %s was lost before this cell was begun: %s; run it again"
                each.refuse("context_lost", why % (self.ident, self.lost))
            else:
                name = self.spec.name if self.spec else ""
                why = "the kernel %s did not start (exit code %d): %s"
                each.refuse("kernel_failed", why % (name, code, words[-500:]))

    def close(self, reason: str) -> None:
        """End its kernel, and what runs in it."""
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            kernel.close()
        cells = [*([self.cell] if self.cell else []), *self.waiting]
        self.cell, self.waiting = None, deque()
        for cell in cells:
            cell.output.error({"ename": "ContextLost", "evalue": "its context was " + reason})
            self._end(cell, "killed", 137)


def _grace_s(cell: Cell) -> float:
    """How long after an interrupt something else is done."""
    return GRACE_S if cell.signalled else _BEGIN_S


def _code(cell: Cell) -> int:
    if cell.reason is not None:
        return TIMEOUT_CODE if cell.reason == "timeout" else INTERRUPTED_CODE
    return 1 if cell.failed else 0


def _show(cell: Cell, message: Message) -> None:
    content = message.content
    if message.kind == "stream":
        kind = frames.STDERR if content.get("name") == "stderr" else frames.STDOUT
        cell.output.text(kind, str(content.get("text", "")))
    elif message.kind == "execute_result":
        cell.output.result(content, main=True)
    elif message.kind in ("display_data", "update_display_data"):
        cell.output.result(content, main=False, update=message.kind == "update_display_data")
    elif message.kind == "error":
        cell.failed = True
        cell.output.error(content)


def start_folder(cwd: Optional[str]) -> str:
    """Raises Refused."""
    folder = os.path.join("/workspace", cwd or "")
    if not os.path.isdir(folder):
        raise Refused("file_not_found", "cannot start a kernel in %s: it is no folder" % folder)
    return folder
