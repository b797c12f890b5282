"""How a shell ended, in the words people use for it."""

import os
from typing import Optional, Tuple

_SIGNALS = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
    10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ",
    31: "SYS",
}  # fmt: skip


def exit_of(status: int) -> Tuple[int, Optional[str]]:
    """The exit code a shell would report for a wait status, and the signal behind it."""
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status), None
    number = os.WTERMSIG(status)
    return 128 + number, _SIGNALS.get(number, str(number))
