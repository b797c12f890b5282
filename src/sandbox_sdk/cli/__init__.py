"""The `sandbox` command.

Exit codes: 0 done · the command's own for `run` and `shell` (124 after its timeout, 137 killed) ·
1 a check of `health` or `doctor` failed · 2 the command line is wrong · 125 the sandbox failed:
no server, no box, no such thread, file or command · 130 Ctrl-C.
"""

from __future__ import annotations

import gc
import signal
import sys


def main(argv: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    if (sys.argv[1:] if argv is None else argv)[:1] == ["serve"]:
        # Told to stop before it can, the server does so when it can.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    gc.disable()  # A tenth of a start's time would go to finding that what is imported is in use.
    try:
        from sandbox_sdk.cli.app import app
    except ModuleNotFoundError as exc:
        if exc.name not in ("typer", "rich"):
            raise
        sys.exit("sandbox: the command line needs `pip install 'agent-sandbox[cli]'`")
    app(argv, prog_name="sandbox")
