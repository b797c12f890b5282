"""Running commands in a bash process, with the shell state loaded before and saved after each.

A new bash loads the state that the last command left (variables, functions, aliases, options,
working directory), runs its command and saves its own state. If it is then as every new one is but
for that state, it waits for the next command, which costs a tenth of a start. Otherwise it exits,
as it does after `exit`, and the next command starts from the saved state: so `exec`, a kill or two
commands at once cannot corrupt it. State is passed in memory files and never touches a disk.
"""

import ctypes
import fcntl
import os
import pkgutil
import re
import struct
import termios
from typing import Dict, List, Optional, Tuple

from . import processes
from .state import BEGUN, STATE_LIMIT, ShellState, key, says_same
from .stdin import Keys, Size, resize

ARGV = [
    "bash",
    "-c",
    "__sandbox_wait; . /dev/fd/201 2>/dev/null; "
    "[[ $__sandbox_loaded$__sandbox_lost$__sandbox_call == all ]] || __sandbox_check; "
    '__sandbox_begin; builtin eval "$__sandbox_run"',
]
INTERACTIVE_ARGV = ["bash", "--rcfile", "/dev/fd/200", "-i"]
PRELUDE_TARGET = 200
TARGETS = (0, 1, 2, 201, 202, 203, 204, 205, PRELUDE_TARGET)
"""Descriptors of a shell: stdin, stdout, stderr, state, save, go, call, ended, and prelude.sh,
which uses them; the numbers are too high for users' own redirections."""
PLAIN, TYPED = b"p", b"t"
"""Kinds of shells: one that waits for calls, and one in which somebody types."""
MOST_COMMANDS = 512
"""Of one shell. Each is an `eval` within that of the one before, which takes 8 kB, and leaves
things behind that only a new shell is without."""
NEXT_STARTS, NEXT_TAKES_OVER = 490, 500
"""After so many commands the next shell is started, and used, so that no command waits for it."""
WORN = 64
"""After so many commands, a box that rests gets another shell instead, which is smaller."""
PIPE_SIZE = 256 * 1024
_USUAL_SIZE = 64 * 1024
"""Most states are smaller than this."""

_STEP = (
    'builtin eval "$__sandbox_command"; if { __sandbox_status=$?;'
    ' builtin eval "$__sandbox_restore"; builtin trap "" XFSZ; builtin trap -p >&202;'
    " __sandbox_next; } >/dev/null 2>&1;"
    ' then builtin set --; builtin eval "$__sandbox_step"; fi'
)
"""A command, and the next one in the same way. What is ours is redirected as a group, so that no
trace or DEBUG trap shows it. Not all in a function: variables would be local to it, and a DEBUG
trap not in force. With `if`, since it succeeds where there is no next one: `set -e` would see an
`eval` that fails."""
_SPECIAL = re.compile(r"(?<![\w-])(?:builtin|enable|exec|set|shopt|trap|ulimit)(?![\w-])")
"""What changes a shell beyond its state, so that it cannot go on."""
_OPEN = {0, 1, 2, 202, 203, 204, 205, 206}
"""Descriptors of a shell that waits: the last while it is telling that it does."""
_EXIT_CODE = re.compile(rb"[0-9]{1,3}\n")
_F_SETPIPE_SZ = 1031
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl %d" % option)


def memory_file(data: bytes = b"") -> int:
    """A file in memory. Writing does not move the offset that readers share."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fill(fd, data)
    return fd


def fill(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], written)


def prelude_file(open_files: int, *, interactive: bool = False) -> int:
    """The prelude that every shell reads first. open_files: descriptor limit of a command, 0 for
    the warden's own. interactive: of one in which somebody types."""
    limit = b"ulimit -n %d 2>/dev/null\n" % open_files if open_files else b""
    text = pkgutil.get_data(__package__, "prelude.sh") or b""
    text = text.replace(b"KEY", key()).replace(b"STEP", _STEP.encode())
    if interactive:
        text += pkgutil.get_data(__package__, "terminal.sh") or b""
    return memory_file(limit + text)


def available(fd: int) -> int:
    """Number of unread bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])


def is_special(command: str) -> bool:
    """Whether a command may change more of its shell than the state. Nothing of ours runs after it
    then, and the shell does not go on."""
    return _SPECIAL.search(command) is not None


class Shell:
    """The warden's descriptors for one bash, which waits for its call."""

    def __init__(
        self, prelude: int, *, stdin: bool, terminal: Optional[Size] = None, kind: bytes = PLAIN
    ) -> None:
        """terminal: instead of pipes, a terminal of this size. Raises OSError if the box is out of
        descriptors."""
        self.kind = kind
        self.pid = self.session = 0
        self.stdin = self.stdout = self.stderr = -1
        self.keys: Optional[Keys] = None
        self.commands = 0
        """How many calls it has got."""
        self.begins_with = ShellState.fresh()
        """The state at the start of its last call."""
        self.told_same = False
        """Whether it need not save that again after the call."""
        keys: List[int] = []
        self._ours: List[int] = []
        theirs: List[int] = []
        try:
            if terminal is not None:
                in_read = out = err = self._terminal(terminal, theirs, keys)
            else:
                in_read, self.stdin = self._input(theirs, stdin)
                self.stdout, out = self._pipe(theirs)
                self.stderr, err = self._pipe(theirs)
            self._state = self._file()
            self._save = self._file()
            self._call = self._file()
            self._go_read, self._go = os.pipe()
            self._ours += (self._go_read, self._go)
            self.ended, ended = self._pipe(theirs)
        except OSError:
            self.close()
            for fd in theirs:
                os.close(fd)
            raise
        self.child_ends = theirs
        self.child_fds = (
            in_read, out, err, self._state, self._save, self._go_read, self._call, ended, prelude,
            *keys,
        )  # fmt: skip
        """For the TARGETS, and where signals of keys come from, if not from the kernel."""

    def _terminal(self, size: Size, theirs: List[int], keys: List[int]) -> int:
        """Make a terminal. Our copy of its end is closed with the shell, so that its output is read
        until then, whatever a command does to its own descriptors."""
        self.stdout, shown = os.openpty()
        self._ours += (self.stdout, shown)
        resize(shown, size)
        self.stdin = os.dup(self.stdout)
        self._ours.append(self.stdin)
        os.set_blocking(self.stdout, False)
        if Keys.missing(self.stdout):
            told, tell = os.pipe()
            self._ours.append(tell)
            theirs.append(told)
            keys.append(told)
            self.keys = Keys(self.stdin, tell)
        return shown

    def _input(self, theirs: List[int], stdin: bool) -> Tuple[int, int]:
        return self._pipe(theirs, write=True) if stdin else (_null(theirs), -1)

    def _file(self) -> int:
        fd = memory_file()
        self._ours.append(fd)
        return fd

    def _pipe(self, theirs: List[int], *, write: bool = False) -> Tuple[int, int]:
        ends = os.pipe()
        ours, their = (ends[1], ends[0]) if write else ends
        self._ours.append(ours)
        theirs.append(their)
        os.set_blocking(ours, False)
        try:
            fcntl.fcntl(ours, _F_SETPIPE_SZ, PIPE_SIZE)
        except OSError:
            pass  # The user's limit of pipe memory is reached: keep the default size.
        return (their, ours) if write else (ours, their)

    def handed_over(self) -> None:
        """Close our copies of the shell's ends, so that we notice when it closes them."""
        for fd in self.child_ends:
            os.close(fd)
        self.child_ends = []

    def call(self, call: bytes, state: ShellState, *, plain: bool = False) -> None:
        """Let the shell run a call (from encode_call). A new one starts from this state; one that
        went on has it. plain: the command leaves it as it is."""
        self.begins_with = state
        self.told_same = plain and state.is_plain and self.commands > 0
        if self.commands == 0:
            fill(self._state, state.load())
            os.close(self.keep(self._state))
            os.close(self.keep(self._go_read))
        else:
            _rewind(self._save)
            _rewind(self._call)
        self.commands += 1
        fill(self._call, call + (b"same\0" if self.told_same else b"\0"))
        try:
            os.write(self._go, b"g")
        except BrokenPipeError:
            pass  # It was killed. Its end is reported, and the command gets another shell.

    def saved(self) -> bytes:
        """What it has written of its state: a little more than the limit at most."""
        start = os.pread(self._save, _USUAL_SIZE, 0)  # To ask for 4 MiB takes longer than the read.
        return start if len(start) < _USUAL_SIZE else os.pread(self._save, STATE_LIMIT + 1, 0)

    def state(self, saved: bytes) -> Optional[ShellState]:
        """The state that a call has left, by what was written of it. None if there is none."""
        if self.told_same and says_same(saved):
            return self.begins_with
        return ShellState.saved(saved)

    def exit_code(self) -> Optional[int]:
        """The exit code of a command after which it waits for the next. None if it exits; -1 if
        something else was told: a command may write there too."""
        try:
            told = os.read(self.ended, 4096)
        except OSError:
            return None
        if not told:
            return None
        return int(told) if _EXIT_CODE.fullmatch(told) else -1

    def is_as_new(self, limits: List[Tuple[int, int]]) -> bool:
        """Whether nothing but its state has changed. limits: those of a new shell. A plain command
        that left the state as it was can have opened nothing in the shell itself."""
        try:
            if self.told_same and says_same(self.saved()):
                return processes.limits(self.pid) == limits
            # A command may have closed them.
            own = {"pipe:[%d]" % os.fstat(fd).st_ino for fd in (self.stdout, self.stderr)}
            links = processes.descriptors(self.pid)
            if links.get(0) != os.devnull:
                return False
            # bash keeps its stdout and stderr at other numbers while it waits.
            others = {link for fd, link in links.items() if fd not in _OPEN} - {os.devnull}
            return others == own and processes.limits(self.pid) == limits
        except OSError:
            return False

    def dismiss(self) -> None:
        """Have it exit instead of waiting for another call. It saves its state once more."""
        if self._go in self._ours:
            # A command may have told its own end, and is still running or saving its state: then
            # that must not be mixed up with what is written here.
            if self.state(self.saved()) is not None:
                _rewind(self._save)
                os.write(self._save, BEGUN)
            os.close(self.keep(self._go))

    def keep(self, fd: int) -> int:
        """Pass one of our descriptors to the caller, who closes it."""
        self._ours.remove(fd)
        return fd

    def take_back(self, fd: int) -> None:
        self._ours.append(fd)

    def close(self) -> None:
        """Close the remaining descriptors. A shell that still waits for its call exits."""
        for fd in self._ours:
            os.close(fd)
        self._ours = []


def _rewind(fd: int) -> None:
    """Empty a memory file; the shell shares its offset."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)


def _null(theirs: List[int]) -> int:
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    theirs.append(fd)
    return fd


def encode_call(
    command: str,
    *,
    command_id: str,
    cwd: Optional[str],
    env: Dict[str, str],
    last: bool = False,
) -> bytes:
    """A call as the shell reads it, but for what Shell.call adds: whether the state stays the same.
    last: the shell does not go on with others. Raises UnicodeEncodeError for invalid text."""
    goes_on = "" if last or is_special(command) else "goes on"
    parts = (cwd or "", _call_lines(command_id, env), command, goes_on)
    return b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for part in parts)


def _call_lines(command_id: str, env: Dict[str, str]) -> str:
    lines = ["builtin export SANDBOX_COMMAND_ID=%s\n" % _quote(command_id)]
    for name, value in env.items():
        # Variables of the call are not part of the saved state: it keeps the previous values.
        lines.append('__sandbox_restore+="unset -v %s\n${%s[@]@A}\n"\n' % (name, name))
        lines.append("builtin export %s=%s\n" % (name, _quote(value)))
    return "".join(lines)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
