"""`sandbox diff` and `sandbox apply`: what a sandbox has made of folders of this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.history import show_changes
from sandbox_sdk.cli.options import Thread
from sandbox_sdk.mounts.changes import MountChange, MountChanges

_CONFLICTS = 1
_LETTERS = {"added": "A", "changed": "M", "removed": "D"}


async def diff(
    thread: Thread,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[N]", help="An entry of its history: what that has changed."),
    ] = None,
    *,
    stat: Annotated[bool, typer.Option("--stat", help="Names alone, a line each.")] = False,
    caller: Caller,
) -> None:
    """Show what a sandbox has changed in its mounts, or what one command has changed.

    A mount is a folder of this machine, of which the sandbox has a copy: see `--mount` of
    `sandbox run`. Prints a patch from that folder as it is now, which `git apply` takes. With N,
    a number out of `sandbox history`, a patch of what that command did in /workspace.
    """
    if number is not None:
        await show_changes(caller, thread, number, stat=stat)
        return
    async with caller.client(thread) as sandbox:
        found = await sandbox.diff()
    if caller.json:
        caller.tell(_document(found))
        return
    if stat:
        _list(found)
    else:
        _print(str(found))
    _complain(caller, found)


async def apply(
    thread: Thread,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; list what would be done.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace also what was changed here since the copy.")
    ] = False,
    caller: Caller,
) -> int:
    """Bring what a sandbox has changed in its mounts to the folders of this machine.

    Lists the files. One that was changed here too since it was copied is left alone, and the exit
    code is 1 then.
    """
    async with caller.client(thread) as sandbox:
        done = await sandbox.apply(force=force, dry_run=dry_run)
    if caller.json:
        caller.tell(_document(done))
    else:
        _list(done)
        _complain(caller, done)
    return _CONFLICTS if done.conflicts else 0


def _document(found: MountChanges) -> dict[str, Any]:
    changes = [{**asdict(each), "folder": str(each.folder)} for each in found.changes]
    return {"changes": changes, "left_out": found.left_out}


def _list(found: MountChanges) -> None:
    for each in found.changes:
        if each.conflict is None:
            print(_LETTERS[each.change], escaped(_shown(each)))


def _complain(caller: Caller, found: MountChanges) -> None:
    for each in found.conflicts:
        caller.complain(f"conflict: {_shown(each)}: {each.conflict}")
    for line in found.left_out:
        caller.complain(f"left out: {line}")


def _shown(change: MountChange) -> str:
    """From here, where that is shorter."""
    path = Path(change.folder, change.path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _print(text: str) -> None:
    """As it is for a program that reads it; on a terminal without codes that would move it."""
    if sys.stdout.isatty():
        print("\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(text))
    sys.stdout.buffer.flush()
