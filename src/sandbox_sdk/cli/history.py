"""`sandbox history` and `sandbox undo`; and `sandbox diff` of one command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import ApiKey, Json, Thread, Url
from sandbox_sdk.protocol.models import ChangedPaths, HistoryEntry, UndoRequest, checked

_HEADS = ("", "WHEN", "EXIT", "TIME", "COMMAND", "FILES")
_LETTERS = {"made": "A", "changed": "M", "removed": "D"}
_TEXT = 60
_PATHS = 5


def history(
    thread: Thread,
    limit: Annotated[int, typer.Option(min=1, max=250, help="The most entries.")] = 20,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """List what was done in a sandbox that was made with --history, newest first.

    With the files that each command has made (A), changed (M) and removed (D) in /workspace. What
    was undone is in brackets: `sandbox undo T --to N` can go back to it too.
    """
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_history(caller, thread, limit))


async def _history(caller: Caller, thread: str, limit: int) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.history(thread, limit=limit)
    if caller.json:
        caller.tell(found.to_dict())
        return
    caller.table(_HEADS, map(_row, found.entries))
    if found.truncated:
        caller.complain(f"there are more than {limit}: see --limit")


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
        caller.tell(found.to_dict())
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


def undo(
    thread: Thread,
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="N", help="To before this entry of its history."),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Take a sandbox back to before its last command, or to before another one.

    Files and shell are as they were then; what runs in it ends. If it fails, nothing has changed.
    An undo is an entry of the history too, and can be undone.
    """
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_undo(caller, checked(UndoRequest, thread_id=thread, to=to)))


async def _undo(caller: Caller, request: UndoRequest) -> None:
    async with caller.sandboxes() as sandboxes:
        done = await sandboxes.undo(request)
    if caller.json:
        caller.tell(done.to_dict())
    else:
        print(f"as before {done.to}: {escaped(done.command)}")
