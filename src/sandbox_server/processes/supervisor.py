"""The parent of a server's processes: starts them, restarts those that die, and stops them all.

Children are forked, so that a new one is there at once: everything is imported already. For that
the parent has neither threads nor an event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog

from sandbox_sdk.protocol.errors import Internal, SandboxError
from sandbox_server.stopping import heed, hold

log = structlog.get_logger()

Message = dict[str, Any]
Report = Callable[[Message], None]
"""Sends a message to the parent."""
Run = Callable[[int, Report], None]
"""What the child of this index does, until it is told to stop."""

_PR_SET_PDEATHSIG = 1
_STABLE_S = 5.0
"""A child that has lived this long is restarted at once when it dies."""
_LONGEST_PAUSE_S = 5.0
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass
class _Child:
    index: int
    pid: int
    pipe: int
    began: float
    received: bytes = b""
    messages: list[Message] = field(default_factory=list)

    def read(self) -> None:
        """Take what it has sent so far."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.pipe, 1 << 16):
                self.received += piece
        *lines, self.received = self.received.split(b"\n")
        self.messages += map(json.loads, lines)

    def said(self, name: str) -> Message | None:
        return next((each for each in self.messages if name in each), None)


class Supervisor:
    """Runs `count` children. on_ready gets the `ready` message of each, once all have sent one.

    on_stop is called in the parent before children are told to stop, on_death with the index of one
    that has ended by itself.
    """

    def __init__(
        self,
        count: int,
        run: Run,
        *,
        on_ready: Callable[[list[Message]], None],
        on_stop: Callable[[], None],
        on_death: Callable[[int], None],
    ) -> None:
        self._count = count
        self._run = run
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._on_death = on_death
        self._children: dict[int, _Child] = {}
        self._ended: list[_Child] = []
        self._restarts: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._all_ready = False
        self._stopping = False
        self._failed: SandboxError | None = None
        self._selector = selectors.DefaultSelector()

    def supervise(self) -> list[Message]:
        """The last messages of all children, when all have ended. Raises what kept one from its
        first start."""
        gc.freeze()  # Pages that the children do not write to are shared.
        with _woken_by_signals() as wake, self._selector:
            self._selector.register(wake, selectors.EVENT_READ)
            for index in range(self._count):
                self._start(index)
            while self._children or (self._restarts and not self._stopping):
                self._wait(wake)
        if self._failed is not None:
            raise self._failed
        return [said for child in self._ended if (said := child.said("left"))]

    def _wait(self, wake: socket.socket) -> None:
        due = min(self._restarts.values(), default=None)
        timeout = None if due is None else max(due - time.monotonic(), 0.0)
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, _Child):
                key.data.read()
            else:
                self._signalled(wake.recv(4096))
        self._reap()
        if not self._all_ready:
            self._note_ready()
        for index, at in list(self._restarts.items()):
            if at <= time.monotonic() and not self._stopping:
                del self._restarts[index]
                self._start(index)

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            # As with one process: told again by ^C, it does not wait for open calls.
            self.stop(signal.SIGINT if self._stopping and number == signal.SIGINT else None)

    def stop(self, number: signal.Signals | None = None) -> None:
        if not self._stopping:
            self._stopping = True
            self._on_stop()
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number or signal.SIGTERM)

    def _note_ready(self) -> None:
        ready = [child.said("ready") for child in self._children.values()]
        told = [message["ready"] for message in ready if message is not None]
        if len(told) == self._count:
            self._all_ready = True
            self._on_ready(told)

    def _reap(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.read()
                self._selector.unregister(child.pipe)
                os.close(child.pipe)
                del self._children[child.index]
                self._ended.append(child)
                self._after(child, os.waitstatus_to_exitcode(status))

    def _after(self, child: _Child, code: int) -> None:
        self._on_death(child.index)
        if self._stopping:
            return
        if not self._all_ready:
            failed = child.said("failed") or {}
            self._failed = _error(failed.get("failed"), code)
            self.stop()
            return
        if (child.said("left") or {}).get("for_good"):
            log.info("process.left", process=child.index)
            return
        lived_s = time.monotonic() - child.began
        failures = 0 if lived_s > _STABLE_S else self._failures.get(child.index, 0) + 1
        self._failures[child.index] = failures
        pause_s = min(0.1 * 2 ** (failures - 2), _LONGEST_PAUSE_S) if failures > 1 else 0.0
        log.warning("process.ended", process=child.index, code=code, restart_in_s=pause_s)
        self._restarts[child.index] = time.monotonic() + pause_s

    def _start(self, index: int) -> None:
        reading, writing = os.pipe()
        parent = os.getpid()
        hold()
        pid = os.fork()
        if pid == 0:
            self._become_child(index, writing, parent)
        heed()
        os.close(writing)
        os.set_blocking(reading, False)
        child = self._children[index] = _Child(index, pid, reading, time.monotonic())
        self._selector.register(reading, selectors.EVENT_READ, child)

    def _become_child(self, index: int, writing: int, parent: int) -> NoReturn:
        code = 1
        try:
            for child in self._children.values():
                os.close(child.pipe)
            self._selector.close()
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)  # ^C is for the parent, which tells us.
            _end_with(parent)

            def report(message: Message) -> None:
                with contextlib.suppress(BrokenPipeError):
                    os.write(writing, json.dumps(message).encode() + b"\n")

            code = _carried_out(index, self._run, report)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _carried_out(index: int, run: Run, report: Report) -> int:
    try:
        run(index, report)
    except SandboxError as exc:
        report({"failed": {"code": exc.code, "message": exc.message, "details": exc.details}})
        log.warning("process.failed", why=exc.message)
        return 1
    except Exception:
        log.exception("process.broke")
        return 1
    return 0


def _end_with(parent: int) -> None:
    """End this process when its parent is killed, as one process would end as a whole."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _error(body: Message | None, code: int) -> SandboxError:
    if body is None:
        return Internal(f"a process of the server ended with code {code}; its log says why")
    return SandboxError.from_wire(body["code"], body["message"], body["details"])


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[socket.socket]:
    """A socket that gets the number of each signal as a byte."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    signal.set_wakeup_fd(writing.fileno())
    heed()
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        reading.close()
        writing.close()
