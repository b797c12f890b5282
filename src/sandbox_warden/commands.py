"""Commands: starting, killing and finishing them."""

import errno
import os
import socket
import stat
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .carrying import Carrying
from .command import Command, Records, Totals, exit_of
from .errors import Refused, refusal
from .killing import Trace
from .loop import READ, Loop, Timer
from .marks import has_marks, is_unchanged
from .meter import Meter
from .nursery import Nursery
from .output import STDERR, STDOUT, OutputLog
from .pipes import Pipes
from .plain import is_plain
from .shell import NEXT_STARTS, WORN, Shell, encode_call, is_special
from .shells import Shells
from .state import begun
from .stdin import Size, Stdin

OVERLAP_S = 0.02
"""A command that runs for longer gets a spare shell beside it, for one that comes meanwhile."""
REST_S = 30.0
"""After so long without a command, a box has one shell again, and none that is worn."""
ROOM_S, ROOM_TRIES = 0.05, 40
"""How often, and how many times, a command is tried that the box has no process left for."""
SETTLE_S = 10.0
"""How long an ended command waits for readers to take its last output."""
TOLD_BYTES = 1000
"""Most bytes of a command's text and of its folder in a summary; of its variables, half of that."""
TIMEOUT_EXIT_CODE = 124
EXHAUSTED_EXIT_CODE = 254
_CROWDED = "the box has reached its process limit"
KILLED_SHELLS = 3
"""After this many shells were killed before they began a command, background processes are killed;
after twice as many the state is dropped, after three times the command is given up."""


class Commands:
    """Every command of the box, by id and by idempotency key."""

    def __init__(
        self,
        loop: Loop,
        meter: Meter,
        *,
        open_files: int,
        nursery: Optional[Tuple[int, socket.socket]] = None,
    ) -> None:
        self._loop = loop
        self._meter = meter
        self.records = Records()
        self._by_shell: Dict[Shell, Command] = {}
        self._cells: Set[Command] = set()
        self.shells = Shells(
            loop, open_files, nursery, on_exit=self._shell_ended, on_gone=self._all_gone
        )
        self.pipes = Pipes(loop, on_room=self._settle)
        self.carrying = Carrying(loop, self.shells, self.pipes)
        self._rest: Optional[Timer] = None
        self.finished_at = time.monotonic()
        self.ran = 0
        self.totals = Totals()

    @property
    def running(self) -> List[Command]:
        """The user's: commands, and cells of code."""
        own = [command for command in self._by_shell.values() if command.on_end is None]
        return own + list(self._cells)

    def idle_s(self, now: float, used_at: float) -> float:
        """Since the last command ended, or the last use. A terminal that is open counts by what is
        typed and shown in it: somebody may have left it."""
        running = self.running
        if any(command.terminal is None for command in running):
            return 0.0
        return now - max([used_at, self.finished_at, *(each.touched for each in running)])

    def own_pids(self) -> List[int]:
        """Processes that change nothing: nurseries, and shells that wait for a command."""
        return self.shells.own_pids(self.carrying.waiting_shell)

    def start(
        self,
        text: str,
        *,
        ident: str,
        key: Optional[str],
        digest: str,
        timeout_s: Optional[float],
        cwd: Optional[str],
        env: Dict[str, str],
        stdin: bool,
        stdin_open: bool,
        output_limit: int,
        terminal: Optional[Size] = None,
        own: bool = False,
    ) -> Command:
        """own: the server's, which counts for nobody."""
        if cwd is not None:
            _check_folder(cwd)
        # First, since it may raise: that must not leave a shell waiting.
        on_terminal = terminal is not None
        call = encode_call(text, command_id=ident, cwd=cwd, env=env, last=on_terminal)
        plain = not cwd and not env and is_plain(text)
        log = OutputLog(output_limit, only_end=on_terminal)
        command = Command(ident, digest, log, time.monotonic())
        command.terminal = terminal
        command.interactive = on_terminal and not text
        command.key = key
        command.cwd = cwd
        command.told = _told(text, cwd, env)
        command.oom_before = self._meter.oom_kills()
        command.call = lambda shell: shell.call(call, self.carrying.state, plain=plain)
        command.special = is_special(text) or on_terminal
        self.records.add(command)
        self.ran += 1
        if not own:
            self.totals.begin(command)
        if timeout_s is not None:
            self._limit(command, timeout_s)
        if self._meter.crowded():
            self._make_room(command, _CROWDED)
        has_input = stdin or stdin_open or on_terminal
        command.tries = 0 if has_input else ROOM_TRIES
        self._begin(command, stdin=has_input, stdin_open=stdin_open or on_terminal)
        return command

    def _begin(self, command: Command, *, stdin: bool = False, stdin_open: bool = False) -> None:
        try:
            self._spawn(command, stdin=stdin, stdin_open=stdin_open)
        except (OSError, MemoryError) as exc:
            self._not_begun(command, exc)

    def _not_begun(self, command: Command, error: Exception) -> None:
        """There was no shell for it. What the box's processes are to blame for ends with those in
        the background, which takes them a moment."""
        if command.tries == 0 or not isinstance(error, OSError) or error.errno != errno.EAGAIN:
            self._could_not_start(command, error)
            return
        if command.tries == ROOM_TRIES and not self._meter.crowded():
            self._make_room(command, _CROWDED)
        else:  # It has been told.
            self.shells.kill_background()
        command.tries -= 1
        command.waits = self._loop.after(ROOM_S, lambda: self._begin(command))

    def start_service(
        self, text: str, *, ident: str, env: Dict[str, str], log: OutputLog,
        on_end: Callable[[Dict[str, Any]], None],
    ) -> Optional[Command]:  # fmt: skip
        """Start a process of our own, in a shell with the state of the last command. It has an
        input, and its output goes to `log`. None if it could not be started, which on_end told."""
        call = encode_call(text, command_id=ident, cwd=None, env=env)
        command = Command(ident, "", log, time.monotonic())
        command.on_end = on_end
        command.call = lambda shell: shell.call(call, self.carrying.state)
        command.special = True
        self.records.services.add(ident)
        try:
            self._spawn(command, stdin=True, stdin_open=True)
        except (OSError, MemoryError) as exc:
            self._could_not_start(command, exc)
            return None
        return command

    def begin_cell(self, command: Command, on_signal: Callable[[int], None]) -> None:
        """A command that runs in a kernel."""
        command.on_signal = on_signal
        self.records.add(command)
        self._cells.add(command)
        self.ran += 1
        self.totals.begin(command)

    def finish_cell(self, command: Command, *, exit_code: int, reason: Optional[str]) -> None:
        self._cells.discard(command)
        self._finish(command, exit_code=exit_code, reason=reason)

    def _spawn(self, command: Command, *, stdin: bool, stdin_open: bool = False) -> None:
        nursery = self.carrying.shell_for(command, stdin=stdin, terminal=command.terminal)
        shell = nursery.go()
        command.nursery = nursery
        self._by_shell[shell] = command
        command.pipes = {shell.keep(shell.stdout): STDOUT}
        if shell.stderr >= 0:
            command.pipes[shell.keep(shell.stderr)] = STDERR
        if stdin:
            command.keys = shell.keys
            command.stdin = Stdin(
                self._loop,
                shell.keep(shell.stdin),
                to_be_sent=stdin_open,
                on_terminal=command.terminal is not None,
                keys=shell.keys,
            )
        try:
            self.pipes.watch(command)
            if not command.special:
                self._loop.watch(shell.ended, READ, lambda _events: self._command_ended(nursery))
        except (OSError, MemoryError):
            self._abandon(command, shell)
            raise
        nursery.call(lambda: self._call(command, shell))
        command.waits = None
        if self.shells.needs_spare:
            command.overlap = self._loop.after(OVERLAP_S, self._prepare_spare)

    def _prepare(self) -> None:
        """Have a shell ready for the next command. Mostly that of the last one is: a second one
        would be a third of the memory and of the start of a box."""
        waiting = self.carrying.waiting_shell
        if self.shells.needs_spare and (waiting is None or waiting.commands >= NEXT_STARTS):
            self._loop.after(0, self._prepare_spare)
        elif waiting is not None and waiting.commands >= WORN:
            self._watch_for_rest()

    def _prepare_spare(self) -> None:
        self.shells.prepare()
        self._watch_for_rest()

    def _watch_for_rest(self) -> None:
        if self._rest is None:
            self._rest = self._loop.after(REST_S, self._rests)

    def _rests(self) -> None:
        self._rest = None
        waiting = self.carrying.waiting_shell
        if self.running or time.monotonic() - self.finished_at < REST_S:
            self._watch_for_rest()
        elif waiting is None:
            self.shells.end_idle()
        elif waiting.commands < WORN:
            self.shells.end_spares()
        else:
            self.shells.prepare()
            self.carrying.renew(WORN)
            self._watch_for_rest()

    def _call(self, command: Command, shell: Shell) -> None:
        assert command.call is not None
        command.pid = shell.pid
        try:
            command.call(shell)
        except (OSError, MemoryError) as exc:
            self._abandon(command, shell)
            self._could_not_start(command, exc)
        command.wake()  # Its followers wait for its pid.

    def _abandon(self, command: Command, shell: Shell) -> None:
        """Close a shell that has not got its command; it exits."""
        if command.nursery is not None:
            command.nursery.close()
        self._loop.unwatch(shell.ended)
        shell.close()
        self.pipes.close(command)

    def _make_room(self, command: Command, why: str) -> None:
        """Kill background processes, so that the session remains usable."""
        self.shells.kill_background()
        text = "sandbox: %s; background processes are killed\n" % why
        command.log.append(STDERR, text.encode())

    def _could_not_start(self, command: Command, error: Exception) -> None:
        if not isinstance(error, OSError):
            error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        text = (
            "sandbox: cannot start the command: %s. The box is at its limit: end a process first.\n"
        )
        command.log.append(STDERR, (text % refusal(error)).encode())
        reason = "pids" if error.errno == errno.EAGAIN else "exhausted"
        self._finish(command, exit_code=EXHAUSTED_EXIT_CODE, reason=reason)

    # The end

    def kill(self, command: Command, number: int) -> None:
        nursery = command.nursery
        if command.on_signal is not None and command.result is None:
            command.on_signal(number)
        if nursery is None:
            if command.waits is not None and command.result is None and number == 9:
                code = TIMEOUT_EXIT_CODE if command.timed_out else 137
                reason = "timeout" if command.timed_out else None
                self._finish(command, exit_code=code, signal="KILL", reason=reason)
            return
        command.signalled = True
        if number != 9:
            nursery.signal(number)
            return
        if command.status is not None:  # Do not wait for slow readers any more.
            command.hurried = True
        self.shells.kill(nursery, lambda shell, session: self._trace(command, shell, session))
        self._settle(command)

    def stop_clocks(self) -> None:
        """The box is paused: no time limit goes on. That of code is with its kernel."""
        now = time.monotonic()
        for command in self._by_shell.values():
            if command.timer is not None:
                command.left_s = max(command.timer.at - now, 0.0)
                command.timer.cancel()
                command.timer = None

    def start_clocks(self) -> None:
        for command in self._by_shell.values():
            if command.left_s is not None:
                self._limit(command, command.left_s)
                command.left_s = None

    def _limit(self, command: Command, timeout_s: float) -> None:
        command.timer = self._loop.after(timeout_s, lambda: self._time_out(command))

    def _trace(self, command: Command, shell: int, session: int) -> Trace:
        return Trace(shell, session, command.marker, command.age_s, self.records.knows)

    def _time_out(self, command: Command) -> None:
        if command.nursery is not None or command.waits is not None:
            command.timed_out = True
            self.kill(command, 9)

    def _command_ended(self, nursery: Nursery) -> None:
        """Its shell has told the end of the command. If it can, it goes on; otherwise it exits, and
        that ends the command."""
        shell = nursery.shell
        assert shell is not None
        code, command = shell.exit_code(), self._by_shell.get(shell)
        if code is None or command is None:  # It exits.
            self._loop.unwatch(shell.ended)
            return
        command.saved = shell.saved()
        if code < 0 or not self.carrying.can_go_on(command, nursery):
            self._loop.unwatch(shell.ended)
            shell.dismiss()
            return
        command.goes_on = True
        command.status = code << 8
        self._settle(command)

    def _shell_ended(self, nursery: Nursery, status: int) -> None:
        shell = nursery.shell
        assert shell is not None
        self._loop.unwatch(shell.ended)
        command = self._by_shell.get(shell)
        if command is None:
            self.carrying.ended(nursery, shell)
            return
        if command.goes_on:  # It was killed while it waited for readers of the last output.
            command.goes_on = False
        else:
            command.saved = shell.saved()
            command.status = status
        again = shell.commands > 1
        shell.close()
        if status >= 0 and not command.signalled and not begun(command.saved):
            command.status = None
            self._start_again(command, status, was_waiting=again)
            return
        self._settle(command)

    def _all_gone(self, nursery: Nursery) -> None:
        if nursery.shell in self._by_shell:
            self._settle(self._by_shell[nursery.shell])

    def _start_again(self, command: Command, status: int, *, was_waiting: bool) -> None:
        """The shell ended before it began the command, so nothing was run. If killed, it may have
        been hit by accident; if it exited, it could not load the state, or could not go on."""
        command.shells += 1
        failed = os.WIFEXITED(status) and not was_waiting
        if failed or command.shells > 2 * KILLED_SHELLS:
            self.carrying.drop(command)
        if command.shells == KILLED_SHELLS:
            self._make_room(command, "a process in the box kills every new shell")
        self.pipes.close(command)
        self._leave_nursery(command)
        if command.stdin is not None or command.shells > 3 * KILLED_SHELLS:
            command.log.append(STDERR, b"sandbox: the command was not begun; run it again\n")
            self._finish(command, exit_code=EXHAUSTED_EXIT_CODE, reason="exhausted")
            return
        self._begin(command)

    def _leave_nursery(self, command: Command) -> None:
        nursery, command.nursery = command.nursery, None
        if nursery is None:
            return
        if nursery.shell is not None:
            self._by_shell.pop(nursery.shell, None)
            if command.goes_on:
                self.carrying.wait(command, nursery)
                return
        self.shells.release(nursery)

    def _settle(self, command: Command) -> None:
        """Finish a command whose shell has ended, once everything killed is dead and its output is
        read."""
        status, nursery = command.status, command.nursery
        if status is None or nursery is None or not nursery.gone:
            return
        if status < 0:  # bash could not be started at all.
            command.status = None
            self.pipes.close(command)
            self._leave_nursery(command)
            self._not_begun(command, OSError(-status, os.strerror(-status)))
            return
        if not self.pipes.drain(command):
            if command.deadline is None:
                command.deadline = self._loop.after(SETTLE_S, lambda: self.pipes.hurry(command))
            return
        code, signal = exit_of(status)
        saved = self.carrying.take(command)
        self._finish(
            command,
            exit_code=TIMEOUT_EXIT_CODE if command.timed_out else code,
            signal=signal,
            reason=self._reason(command, code),
            state_saved=saved,
        )

    def _reason(self, command: Command, code: int) -> Optional[str]:
        if command.timed_out:
            return "timeout"
        kills = self._meter.oom_kills()
        if code == 137 and kills is not None and kills > (command.oom_before or 0):
            return "oom"
        return None

    def _finish(self, command: Command, *, exit_code: int, **more: Any) -> None:
        """more: signal, reason and state_saved, unless None or False."""
        if command.on_end is None:
            self.finished_at = time.monotonic()
        command.log.settle()
        command.result = command.standing(
            output_bytes=command.log.size,
            cwd=self.carrying.state.cwd,
            timed_out=command.timed_out,
            exit_code=exit_code,
            **more,
        )
        self.totals.end(command)
        if command.pid:
            command.result["pid"] = command.pid
        if has_marks(command.ident):
            command.result["marked"] = True
        elif command.tells_changes and is_unchanged(command.started_at):
            command.result["unchanged"] = True
        self._clear(command)
        command.wake()
        if command.on_end is None:
            self.records.finished(command)
        else:
            command.on_end(command.result)
        self._prepare()

    def _clear(self, command: Command) -> None:
        """Close what only a running command needs."""
        for timer in (command.timer, command.deadline, command.overlap, command.waits):
            if timer is not None:
                timer.cancel()
        command.left = command.call = None
        command.pid, command.told = 0, {}
        self._leave_nursery(command)
        self.pipes.outlive(command)
        if command.stdin is not None:
            command.stdin.close()
        command.keys = None


def _told(text: str, cwd: Optional[str], env: Dict[str, str]) -> Dict[str, Any]:
    """What the summary of a running command says of the call that started it. Small enough for 256
    of them in one answer."""
    start = text.encode("utf-8", "surrogateescape")[:TOLD_BYTES].decode("utf-8", "ignore")
    size = sum(len(name) + len(value.encode()) + 8 for name, value in env.items())
    short = cwd is not None and len(os.fsencode(cwd)) <= TOLD_BYTES
    return {
        "text": start,
        "cwd": cwd if short else None,
        "env": dict(env) if size <= TOLD_BYTES // 2 else None,
    }


def _check_folder(cwd: str) -> None:
    """Raises Refused if no command can be started in the folder."""
    try:
        if not stat.S_ISDIR(os.stat(cwd).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(cwd, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        why = refusal(exc)
        raise Refused(why.code, "cannot start in folder %s: %s" % (cwd, why)) from None
