"""Commands: started, followed, killed, and remembered for a server that comes back."""

import errno
import os
import stat
import time
from typing import Callable, Dict, List, Optional

from . import processes
from .command import Command
from .errors import Refused, refusal
from .exits import exit_of
from .loop import READ, Loop
from .meter import Meter
from .nursery import Nursery
from .output import STDERR, STDOUT, OutputLog
from .records import Records
from .shell import WORKSPACE, Shell, ShellState, available, begun, folder_refused
from .shells import Shells
from .stdin import Stdin

READ_SIZE = 256 * 1024
UNREPORTED_S = 2.0
PREPARE_S = 0.02
STALL_S = 10.0
"""How long a reader that takes nothing may hold a command back before it has to accept a gap."""
TIMEOUT_EXIT_CODE = 124
EXHAUSTED_EXIT_CODE = 254
KILLED_SHELLS = 3
"""After so many shells were killed before they began a command, the background is ended; after
twice as many the state is dropped, and after three times the command is given up."""
LOAD_S = 5.0
"""A shell that was killed after so long without having begun was kept by its state."""


class Commands:
    """Every command of the box, by id and by idempotency key."""

    def __init__(self, loop: Loop, meter: Meter, *, open_files: int) -> None:
        self._loop = loop
        self._meter = meter
        self._state = ShellState.fresh()
        self.records = Records()
        self._by_shell: Dict[Shell, Command] = {}
        self._shells = Shells(loop, self._shell_ended, open_files)
        self.finished_at = time.monotonic()
        self.ran = 0

    @property
    def running(self) -> List[Command]:
        return list(self._by_shell.values())

    @property
    def cwd(self) -> str:
        return self._state.cwd

    def prepare(self) -> None:
        """Have a shell at hand for the first command."""
        self._shells.prepare()

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
    ) -> Command:
        if cwd is not None:
            _check_folder(cwd)
        command = Command(ident, digest, OutputLog(output_limit), time.monotonic())
        command.key = key
        command.cwd = cwd
        command.oom_before = self._meter.oom_kills()
        command.call = lambda shell: shell.call(
            text, self._state, command_id=ident, cwd=cwd, env=env
        )
        self.records.add(command)
        self.ran += 1
        if self._meter.crowded():
            self._make_room(command, "the box was at its limit of processes")
        try:
            self._spawn(command, stdin=stdin or stdin_open, stdin_open=stdin_open)
        except OSError as exc:
            self._could_not_start(command, exc)
            return command
        if timeout_s is not None:
            command.timer = self._loop.after(timeout_s, lambda: self._time_out(command))
        return command

    def _spawn(self, command: Command, *, stdin: bool, stdin_open: bool = False) -> None:
        nursery = self._shells.take(stdin=stdin)
        shell = nursery.go()
        assert command.call is not None
        command.call(shell)
        command.nursery = nursery
        command.pipes = {shell.keep(shell.stdout): STDOUT, shell.keep(shell.stderr): STDERR}
        command.save_fd = shell.keep(shell.save)
        if stdin:
            fd = shell.keep(shell.stdin)
            command.stdin = Stdin(self._loop, fd, to_be_sent=stdin_open)
        self._by_shell[shell] = command
        self._watch(command)
        # Not at once: starting the next shell would compete with this command.
        self._loop.after(PREPARE_S, self._shells.prepare)

    def _make_room(self, command: Command, why: str) -> None:
        """What is in the background must not take the session with it."""
        processes.kill_all(self._shells.background)
        text = "sandbox: %s; the processes in the background are ended\n" % why
        command.log.append(STDERR, text.encode())

    def _could_not_start(self, command: Command, error: OSError) -> None:
        text = (
            "sandbox: cannot start the command: %s. The box is at its limit: end something first.\n"
        )
        command.log.append(STDERR, (text % refusal(error)).encode())
        reason = "pids" if error.errno == errno.EAGAIN else "exhausted"
        self._finish(command, exit_code=EXHAUSTED_EXIT_CODE, signal=None, reason=reason)

    # Output

    def _watch(self, command: Command) -> None:
        for fd, stream in command.pipes.items():
            self._loop.watch(fd, READ, _reader(self, command, fd, stream))

    def on_output(self, command: Command, fd: int, stream: int) -> None:
        room = self._room(command)
        if room <= 0:
            self._pause(command)
            return
        left = command.left
        most = min(READ_SIZE, room) if left is None else min(READ_SIZE, room, max(left[fd], 0))
        try:
            data = os.read(fd, most) if most else b""
        except BlockingIOError:
            return
        if left is not None:
            left[fd] = left[fd] - len(data) if data else 0
        elif not data:
            self._close_pipe(command, fd)
        if data and command.result is not None:
            command.late_bytes += len(data)
        elif data:
            command.log.append(stream, data)
            for follower in list(command.followers):
                if follower.live:
                    follower.wake()
        if left is not None:
            self._settle(command)

    def _room(self, command: Command) -> int:
        """How much may be read now without pushing out what a live reader has yet to get."""
        half = command.log.half
        lags = [f.lag() for f in command.followers if f.live and not f.lossy]
        return half - max(lags, default=0) if lags else READ_SIZE

    def _pause(self, command: Command) -> None:
        if command.paused:
            return
        command.paused = True
        for fd in command.pipes:
            self._loop.unwatch(fd)
        command.stall = self._loop.after(STALL_S, lambda: self._stalled(command))

    def _stalled(self, command: Command) -> None:
        for follower in command.followers:
            if follower.live and command.log.half - follower.lag() <= 0:
                follower.lossy = True
        self.resume(command)

    def resume(self, command: Command) -> None:
        """A reader moved on or left: go on reading where it held the command back."""
        if not command.paused or self._room(command) <= 0:
            return
        command.paused = False
        if command.stall is not None:
            command.stall.cancel()
            command.stall = None
        self._watch(command)

    def _close_pipe(self, command: Command, fd: int) -> None:
        self._loop.unwatch(fd)
        del command.pipes[fd]
        os.close(fd)

    # The end

    def kill(self, command: Command, number: int) -> None:
        if command.nursery is None:
            return
        command.signalled = True
        if number != 9:
            command.nursery.signal(number)
            return
        nursery = command.nursery
        nursery.kill(command.marker)
        self._loop.after(UNREPORTED_S, lambda: self._give_up(command, nursery))

    def _give_up(self, command: Command, nursery: Nursery) -> None:
        """Everything is dead and its nursery does not say so: somebody has stopped it."""
        if command.nursery is nursery:
            nursery.destroy()

    def _time_out(self, command: Command) -> None:
        if command.nursery is not None:
            command.timed_out = True
            self.kill(command, 9)

    def stopped(self, pid: int) -> None:
        self._shells.stopped(pid)

    def reaped(self, pid: int, status: int) -> None:
        """A child of the warden itself has ended."""
        self._shells.reaped(pid, status)

    def _shell_ended(self, shell: Shell, status: int) -> None:
        """What is in a command's pipes when its shell has ended is still its output."""
        command = self._by_shell.pop(shell, None)
        shell.close()
        if command is None:
            return
        command.nursery = None
        if status >= 0 and not command.signalled and not begun(command.save_fd):
            self._start_again(command, status)
            return
        if command.timer is not None:
            command.timer.cancel()
        command.status = status
        command.left = {fd: available(fd) for fd in command.pipes}
        self._settle(command)

    def _start_again(self, command: Command, status: int) -> None:
        """The shell ended before it began the command: nothing of that has been run. One that was
        killed may have been hit by chance; one that left by itself cannot load the state."""
        command.shells += 1
        if os.WIFEXITED(status) or command.shells > 2 * KILLED_SHELLS:
            self._drop_state(command)
        if command.shells == KILLED_SHELLS:
            self._make_room(command, "something in the box ends every new shell")
        for fd in list(command.pipes):
            self._close_pipe(command, fd)
        self._drop_save(command)
        if command.stdin is not None or command.shells > 3 * KILLED_SHELLS:
            command.log.append(STDERR, b"sandbox: the command was not begun; run it again\n")
            self._finish(command, exit_code=EXHAUSTED_EXIT_CODE, signal=None, reason="exhausted")
            return
        try:
            self._spawn(command, stdin=False)
        except OSError as exc:
            self._could_not_start(command, exc)

    def _drop_save(self, command: Command) -> None:
        fd, command.save_fd = command.save_fd, -1
        os.close(fd)

    def _drop_state(self, command: Command) -> None:
        """The way out of a state that keeps commands from running."""
        self._state.close()
        self._state = ShellState.fresh()
        text = (
            b"sandbox: the state of earlier commands could not be loaded; variables, functions and"
            b" options are reset, and the folder is %s\n" % WORKSPACE.encode()
        )
        command.log.append(STDERR, text)

    def _settle(self, command: Command) -> None:
        """Finish as soon as everything written before the end has been read."""
        assert command.left is not None
        if command.status < 0:  # bash could not be started at all.
            command.left = None
            self._drop_save(command)
            self._could_not_start(command, OSError(-command.status, os.strerror(-command.status)))
            return
        if any(count > 0 for count in command.left.values()):
            return
        code, signal = exit_of(command.status)
        saved = self._take_state(command)
        command.left = None
        self._finish(
            command,
            exit_code=TIMEOUT_EXIT_CODE if command.timed_out else code,
            signal=signal,
            reason=self._reason(command, code),
            state_saved=saved,
        )

    def _take_state(self, command: Command) -> bool:
        """The state is taken over in order of completion; a killed command leaves none."""
        fd, command.save_fd = command.save_fd, -1
        if folder_refused(fd):
            message = "cannot enter the folder %s to start in: it is gone or closed" % command.cwd
            command.refused = Refused("invalid_path", message)
        elif not begun(fd) and command.age_s > LOAD_S:
            self._drop_state(command)
        state = None if command.timed_out else ShellState.saved(fd)
        if state is None:
            os.close(fd)
            return False
        self._state.close()
        self._state = state
        return True

    def _reason(self, command: Command, code: int) -> Optional[str]:
        if command.timed_out:
            return "timeout"
        kills = self._meter.oom_kills()
        if code == 137 and kills is not None and kills > (command.oom_before or 0):
            return "oom"
        return None

    def _finish(
        self,
        command: Command,
        *,
        exit_code: int,
        signal: Optional[str],
        reason: Optional[str],
        state_saved: bool = False,
    ) -> None:
        self.finished_at = time.monotonic()
        command.log.settle()
        command.result = {
            "command_id": command.ident,
            "exit_code": exit_code,
            "signal": signal,
            "reason": reason,
            "timed_out": command.timed_out,
            "duration_ms": round((self.finished_at - command.started) * 1000, 3),
            "output_bytes": command.log.size,
            "cwd": self._state.cwd,
            "state_saved": state_saved,
        }
        if command.stdin is not None:
            command.stdin.close()
        for follower in list(command.followers):
            follower.wake()
        self.records.finished(command)
        self._loop.after(0, self._shells.prepare)


def _check_folder(cwd: str) -> None:
    """Raises Refused for a folder that no command can be started in."""
    try:
        if not stat.S_ISDIR(os.stat(cwd).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(cwd, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        why = refusal(exc)
        raise Refused(why.code, "cannot start in the folder %s: %s" % (cwd, why)) from None


def _reader(commands: Commands, command: Command, fd: int, stream: int) -> Callable[[int], None]:
    def on_ready(events: int) -> None:
        del events
        commands.on_output(command, fd, stream)

    return on_ready
