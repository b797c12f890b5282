"""The state that one command leaves to the next, as its shell writes it (prelude.sh)."""

import os
import re
from functools import lru_cache
from typing import Optional, Tuple

WORKSPACE = "/workspace"
STATE_LIMIT = 4 << 20
BEGUN = b"#begun\n"
_NOT_ENTERED = b"#cwd\n"
_OWN_TRAPS = re.compile(rb"trap -- '[^']*__sandbox_save[^']*' EXIT\ntrap -- '' SIGXFSZ\n", re.S)
_NOT_LOADED = re.compile(
    rb"^declare -[^ ]+ (?:RANDOM|SRANDOM|BASH|BASHPID|BASH_ALIASES|BASH_ARGV0|BASH_CMDS"
    rb"|BASH_COMMAND|BASH_EXECUTION_STRING|BASH_LOADABLES_PATH|BASH_SUBSHELL|BASH_VERSION|BASH_XTRACEFD"
    rb"|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|FUNCNAME|GROUPS|HISTCMD|HOSTTYPE"
    rb"|LINENO|MACHTYPE|OSTYPE|PIPESTATUS|SANDBOX_COMMAND_ID|__sandbox_\w*)(?:=[^\n]*)?\n"
    rb"|^declare -f\w* (?:trap|__sandbox_\w+)\n|^(?:trap|__sandbox_\w+) \(\) \n\{ \n.*?^\}\n",
    re.M | re.S,
)
"""bash's own variables, which mean something only in their shell, and ours."""
_NAMES = re.compile(rb"^(?:alias |declare -\w*n)", re.M)


@lru_cache(maxsize=None)
def key() -> bytes:
    """Marks a state written by prelude.sh, since a command may write to the same file. Made at its
    first use, not at the import: boxes are forked from one process that has imported this."""
    return os.urandom(8).hex().encode()


@lru_cache(maxsize=None)
def _no_functions() -> bytes:
    """How a state without functions ends."""
    return b"\n__sandbox_loaded=functions\n__sandbox_loaded=all\n#end %s\n" % key()


@lru_cache(maxsize=None)
def _same() -> bytes:
    return b"#same %s\n" % key()


@lru_cache(maxsize=None)
def _marks() -> Tuple[bytes, bytes]:
    """How a state begins, and how it ends."""
    return b"#%s " % key(), b"#end %s\n" % key()


class ShellState:
    """The state one command leaves to the next, and the cwd in it."""

    def __init__(self, text: bytes, cwd: str) -> None:
        self._text = text
        self._plain: Optional[bool] = None
        self.cwd = cwd

    @classmethod
    def fresh(cls) -> "ShellState":
        text = "__sandbox_load %s '' ''\n__sandbox_loaded=all\n" % WORKSPACE
        return cls(text.encode(), WORKSPACE)

    @classmethod
    def saved(cls, data: bytes) -> Optional["ShellState"]:
        """The state a shell wrote. None if it wrote none, only part of one, or too much; the
        previous state then stays."""
        head, end = _marks()
        start = data.rfind(b"\n" + head) + 1  # One that was told not to go on writes it again.
        if start <= 0 or len(data) > STATE_LIMIT or not data.endswith(end):
            return None
        if not data.startswith(BEGUN):
            return None
        cwd = data[start + len(head) :].split(b"\n", 1)[0]
        return cls(data[start:], cwd.decode("utf-8", "replace"))

    @property
    def is_plain(self) -> bool:
        """Whether it certainly has no functions and no aliases, which could be behind any name, and
        no references, which could be to `a[i++]`."""
        if self._plain is None:
            text = self._text
            self._plain = text.endswith(_no_functions()) and _NAMES.search(text) is None
        return self._plain

    def load(self) -> bytes:
        """What a new shell has to run to have this state."""
        return _NOT_LOADED.sub(b"", self._text)

    def packed(self) -> bytes:
        """The same for another box, whose user may have another name and home."""
        text = self.load()
        for name in ("HOME", "USER", "LOGNAME"):
            line = 'declare -x %s="%s"\n' % (name, os.environ.get(name, ""))
            text = text.replace(b"\n" + line.encode(), b"\n", 1)
        return text


def says_same(data: bytes) -> bool:
    """Whether a shell has not written its state because it was told that it stays the same."""
    return data.startswith(BEGUN) and data.endswith(_same())


def left_traps(data: bytes) -> bool:
    """Whether the command has set traps, by what its shell wrote when it ended."""
    end = data.find(_same() if says_same(data) else _marks()[0])
    return _OWN_TRAPS.fullmatch(data, len(BEGUN), max(end, 0)) is None


def begun(data: bytes) -> bool:
    """Whether the shell began its command, or could not for the call's own fault. If not, nothing
    of the command was run."""
    return data.startswith((BEGUN, _NOT_ENTERED))


def unsaved(data: bytes) -> Optional[str]:
    """Why a shell left no state, although it began its command."""
    if len(data) > STATE_LIMIT:
        return "they take more than the limit of %d bytes" % STATE_LIMIT
    return "they could not all be written" if len(data) > len(BEGUN) else None


def folder_refused(data: bytes) -> bool:
    """Whether the shell could not enter the folder given for the command."""
    return data == _NOT_ENTERED
