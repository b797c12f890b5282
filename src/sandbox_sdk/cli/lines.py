"""Lines a person types: whether they make a whole command, and what was typed before."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

_UNFINISHED = (
    "unexpected end of file",  # a block, a pipe, an `&&` that goes on
    "unexpected EOF while looking for",  # a quote, a bracket
    "delimited by end-of-file",  # a here-document
)
_KEPT = 2000


def is_complete(text: str) -> bool:
    """Whether bash would run this as it is, or complain, instead of waiting for more.

    Asks the bash of this machine, which only reads and runs nothing. Where there is none, every
    line counts as complete.
    """
    if (len(text) - len(text.rstrip("\\"))) % 2:
        return False
    bash = shutil.which("bash")
    if bash is None:
        return True
    checked = subprocess.run(
        [bash, "--norc", "--noprofile", "-n"],
        input=text + "\n",
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    return not any(sign in checked.stderr for sign in _UNFINISHED)


class History:
    """What was typed, kept from shell to shell. Use as a context manager."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._path = Path(base, "sandbox", "history")

    def __enter__(self) -> Self:
        with contextlib.suppress(ImportError, OSError):
            import readline

            readline.set_history_length(_KEPT)
            readline.read_history_file(self._path)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            readline.write_history_file(self._path)
