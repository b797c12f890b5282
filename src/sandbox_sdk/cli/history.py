"""`sandbox history` and `sandbox undo`; and `sandbox diff` of one command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import Thread
from sandbox_sdk.protocol.models import ChangedPaths, HistoryEntry, UndoRequest, checked

_HEADS = ("", "WHEN", "EXIT", "TIME", "COMMAND", "FILES")
_LETTERS = {"made": "A", "changed": "M", "removed": "D"}
_TEXT = 60
_PATHS = 5


async def history(
    thread: Thread,
    *,
    limit: Annotated[int, typer.Option(min=1, max=250, help="The most entries.")] = 20,
    caller: Caller,
) -> None:
    """List what was done in a sandbox that was made with --history, newest first.

    With the files that each command has made (A), changed (M) and removed (D) in /workspace. What
    was undone is in brackets: `sandbox undo T --to N` can go back to it too.
    """
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.history(thread, limit=limit)
    caller.say_table(found, _HEADS, map(_row, found.entries))
    caller.complain_of_cut(limit, truncated=found.truncated)


def _row(each: HistoryEntry) -> tuple[str, ...]:
    text = each.command if len(each.command) <= _TEXT else f"{each.command[: _TEXT - 1]}…"
    return (
        f"[{each.number}]" if each.undone else str(each.number),
        f"{each.at.astimezone():%H:%M:%S}",
        "" if each.exit_code is None else str(each.exit_code),
        "" if each.duration_ms is None else f"{each.duration_ms / 1000:.2f} s",
        text,
        "" if each.files is None else _files(each.files),
    )


def _files(files: ChangedPaths) -> str:
    named = [
        f"{letter} {path}" for kind, letter in _LETTERS.items() for path in getattr(files, kind)
    ]
    more = len(named) - _PATHS + files.more
    shown = named[:_PATHS] + ([f"and {more} more"] if more > 0 else [])
    return ", ".join(shown)


async def show_changes(caller: Caller, thread: str, number: int, *, stat: bool) -> None:
    """What one command has changed, as `sandbox diff T N` prints it."""
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.changes(thread, number)
    if caller.json:
        caller.tell(found)
        return
    if stat:
        for each in found.changes:
            print(f"{_LETTERS[each.change]} {escaped(each.path)}")
    else:
        sys.stdout.write(found.diff)
    if found.more:
        caller.complain(f"and {found.more} more files")
    if found.diff_truncated and not stat:
        caller.complain("the patch is cut: there is more than it can show")


async def undo(
    thread: Thread,
    *,
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="N", help="To before this entry of its history."),
    ] = None,
    caller: Caller,
) -> None:
    """Take a sandbox back to before its last command, or to before another one.

    Files and shell are as they were then; what runs in it ends. If it fails, nothing has changed.
    An undo is an entry of the history too, and can be undone.
    """
    request = checked(UndoRequest, thread_id=thread, to=to)
    async with caller.sandboxes() as sandboxes:
        done = await sandboxes.undo(request)
    caller.say(done, f"as before {done.to}: {escaped(done.command)}")
