"""`sandbox audit`: check that an audit log is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.cli.local import local, needs_server

if TYPE_CHECKING:
    from sandbox_server.audit.verifying import Report

app = typer.Typer(no_args_is_help=True, help="The audit log of a server.")

_Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]…",
        help="Files to check, in any order. Left out: SANDBOX_AUDIT_LOG, with its rotated files and"
        " those of all processes.",
    ),
]


@app.callback()
def _group() -> None:
    """Keeps `verify` a subcommand while there is no other."""


@app.command()
@local
async def verify(files: _Files = None, *, caller: Caller) -> int:
    """Check that no line was removed, changed, moved or inserted. Exits with 1 if one was."""
    with needs_server():
        from sandbox_server.audit.verifying import verify_files, verify_log
        from sandbox_server.settings import load

    try:
        if files:
            report = verify_files(files)
        else:
            path = load().audit_log
            if path is None:
                raise InvalidRequest("name the files to check, or set SANDBOX_AUDIT_LOG")
            report = verify_log(path)
    except OSError as exc:
        raise InvalidRequest(f"{exc.filename} cannot be read: {exc.strerror}") from None
    _tell(caller, report)
    return 1 if report.problems else 0


def _tell(caller: Caller, report: Report) -> None:
    if caller.json:
        caller.tell(
            {
                "whole": not report.problems,
                "files": report.files,
                "lines": report.lines,
                "chains": report.chains,
                "problems": [vars(each) for each in report.problems],
                "notes": [vars(each) for each in report.notes],
            }
        )
        return
    for problem in report.problems:
        print(escaped(str(problem)))
    for note in report.notes:
        print(escaped(f"note: {note}"))
    found = f"{len(report.problems)} problems" if report.problems else "whole"
    print(f"{report.lines} lines in {len(report.files)} files: {found}")
