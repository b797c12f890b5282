"""`sandbox events` and `watch`: what happens, as it happens."""

from __future__ import annotations

import contextlib
from typing import Annotated, cast, get_args

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.models import WORKSPACE, FileChange, Happening, HappeningKind

_KINDS: tuple[str, ...] = get_args(HappeningKind)
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")]


async def events(
    *,
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="T", help="Of this thread alone.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help=f"One of {', '.join(_KINDS)}.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="From this event on; empty: all that is kept."),
    ] = None,
    count: Count = None,
    caller: Caller,
) -> None:
    """Tell what happens, as it happens: sessions, commands that end, checkpoints, limits.

    Without an end: Ctrl-C stops it. With --json, a line for every event, with the id that --after
    takes.
    """
    if kind is not None and kind not in _KINDS:
        raise typer.BadParameter(f"--kind is one of {', '.join(_KINDS)}")
    wanted = cast("HappeningKind | None", kind)
    async with caller.sandboxes() as sandboxes:
        found = sandboxes.watch(thread_id=thread, kind=wanted, after=after)
        await caller.follow(found, _event, count)


def _event(event: Happening) -> str:
    about = " ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    at = event.at.astimezone().strftime("%H:%M:%S")
    return escaped(f"{at} {event.kind:<18} {event.thread_id or '-'} {about}")


async def watch(
    thread: Annotated[str, typer.Argument(metavar="T", help="The thread.")],
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A folder, relative to /workspace.")
    ] = WORKSPACE,
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Folders in folders too.")
    ] = False,
    count: Count = None,
    caller: Caller,
) -> None:
    """Tell what changes in a folder of a sandbox, as it changes.

    Without an end: Ctrl-C stops it. With --json, a line for every change. A line `gap` says that
    changes are missing.
    """
    async with (
        caller.client(thread) as sandbox,
        contextlib.aclosing(sandbox.watch_files(path, recursive=recursive)) as changes,
    ):
        await caller.follow(changes, _change, count)


def _change(change: FileChange) -> str:
    slash = "/" if change.type == "directory" and change.path != "." else ""
    return escaped(f"{change.kind:<6} {change.path}{slash}")
