"""Running a command in a bash process, with the shell state loaded before and saved after it.

Every command is a new bash. It loads the state of the last one (variables, functions, aliases,
options, working directory) and saves its own at exit, so `exit`, `exec`, a kill or two concurrent
commands cannot corrupt it. State is passed in sealed memory files and never touches a disk.
"""

import ctypes
import fcntl
import os
import pkgutil
import struct
import termios
from typing import Dict, List, Optional, Tuple

WORKSPACE = "/workspace"
ARGV = [
    "bash",
    "-c",
    "__sandbox_wait; . /dev/fd/201 2>/dev/null; "
    "[[ $__sandbox_loaded$__sandbox_lost$__sandbox_call == all ]] || __sandbox_check; "
    '__sandbox_begin; builtin eval "$__sandbox_command"',
]
TARGETS = (0, 1, 2, 201, 202, 203, 204)
"""Descriptors of a shell: stdin, stdout, stderr, state, save, go, call. prelude.sh, itself number
200, uses them; the numbers are too high for users' own redirections."""
PRELUDE_TARGET = 200
PIPE_SIZE = 256 * 1024

_STATE_LIMIT = 4 << 20
_KEY = os.urandom(8).hex().encode()
"""Marks a state written by prelude.sh, since a command may write to the same file."""
_BEGUN = b"#begun\n"
_NOT_ENTERED = b"#cwd\n"
_STATE_HEAD = b"#" + _KEY + b" "
_STATE_END = b"#end " + _KEY + b"\n"
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


def prelude_file(open_files: int) -> int:
    """The prelude that every shell reads first. open_files: descriptor limit of a command, 0 for
    the warden's own."""
    limit = b"ulimit -n %d 2>/dev/null\n" % open_files if open_files else b""
    text = pkgutil.get_data(__package__, "prelude.sh") or b""
    return memory_file(limit + text.replace(b"KEY", _KEY))


def available(fd: int) -> int:
    """Number of unread bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])


class ShellState:
    """The state one command leaves to the next: a sealed memory file, and the cwd in it."""

    def __init__(self, fd: int, cwd: str) -> None:
        self.fd = fd
        self.cwd = cwd

    @classmethod
    def fresh(cls) -> "ShellState":
        text = "__sandbox_load %s '' ''\n__sandbox_loaded=all\n" % WORKSPACE
        return cls(memory_file(text.encode()), WORKSPACE)

    @classmethod
    def saved(cls, fd: int) -> Optional["ShellState"]:
        """The state a finished shell wrote to fd; takes over fd. None if the shell wrote none, only
        part of one, or too much; the previous state then stays."""
        size = os.fstat(fd).st_size
        if not len(_STATE_END) < size <= _STATE_LIMIT:
            return None
        if os.pread(fd, len(_STATE_END), size - len(_STATE_END)) != _STATE_END:
            return None
        head = os.pread(fd, 8192, 0)
        if not head.startswith(_BEGUN + _STATE_HEAD):
            return None
        try:
            # Processes of the box must not change the state from now on.
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError:
            pass  # A child has it mapped, and can only harm its own session.
        cwd = head[len(_BEGUN + _STATE_HEAD) :].split(b"\n", 1)[0]
        return cls(fd, cwd.decode("utf-8", "replace"))

    def read(self) -> bytes:
        return os.pread(self.fd, _STATE_LIMIT, 0)

    def close(self) -> None:
        os.close(self.fd)


def begun(save_fd: int) -> bool:
    """Whether the shell began its command. If not, nothing of the command was run."""
    return os.fstat(save_fd).st_size > 0


def unsaved(save_fd: int) -> Optional[str]:
    """Why an ended shell left no state, although it began its command."""
    size = os.fstat(save_fd).st_size
    if size > _STATE_LIMIT:
        return "they take %d bytes, the limit is %d" % (size, _STATE_LIMIT)
    return "they could not all be written" if size > len(_BEGUN) else None


def folder_refused(save_fd: int) -> bool:
    """Whether the shell could not enter the folder given for the command."""
    return os.pread(save_fd, len(_NOT_ENTERED) + 1, 0) == _NOT_ENTERED


class Shell:
    """The warden's descriptors for one bash, which waits for its call."""

    def __init__(self, *, stdin: bool) -> None:
        """Raises OSError if the box is out of descriptors."""
        self.pid = 0
        self._ours: List[int] = []
        theirs: List[int] = []
        try:
            in_read, self.stdin = self._pipe(theirs, write=True) if stdin else (_null(theirs), -1)
            self.stdout, out = self._pipe(theirs)
            self.stderr, err = self._pipe(theirs)
            self._state = self._file()
            self.save = self._file()
            self._call = self._file()
            self._go_read, self._go = os.pipe()
            self._ours += (self._go_read, self._go)
        except OSError:
            self.close()
            for fd in theirs:
                os.close(fd)
            raise
        self.child_ends = theirs
        self.child_fds = (in_read, out, err, self._state, self.save, self._go_read, self._call)

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

    def call(self, call: bytes, state: ShellState) -> None:
        """Let the shell run a call (from encode_call), starting from this state."""
        fill(self._state, state.read())
        fill(self._call, call)
        os.write(self._go, b"g")
        for fd in (self._state, self._call, self._go):
            os.close(self.keep(fd))

    def keep(self, fd: int) -> int:
        """Pass one of our descriptors to the caller, who closes it."""
        self._ours.remove(fd)
        return fd

    def close(self) -> None:
        """Close the remaining descriptors. A shell that still waits for its call exits."""
        for fd in self._ours:
            os.close(fd)
        self._ours = []


def _null(theirs: List[int]) -> int:
    fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    theirs.append(fd)
    return fd


def encode_call(command: str, *, command_id: str, cwd: Optional[str], env: Dict[str, str]) -> bytes:
    """A call as the shell reads it. Raises UnicodeEncodeError for invalid text."""
    parts = (cwd or "", _call_lines(command_id, env), command)
    return b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for part in parts)


def _call_lines(command_id: str, env: Dict[str, str]) -> str:
    lines = ["builtin export SANDBOX_COMMAND_ID=%s\n" % _quote(command_id)]
    for name, value in env.items():
        # Variables of the call are not part of the saved state: it keeps the previous values.
        lines.append('__sandbox_restore+="unset -v %s\n${%s@A}\n"\n' % (name, name))
        lines.append("builtin export %s=%s\n" % (name, _quote(value)))
    return "".join(lines)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
