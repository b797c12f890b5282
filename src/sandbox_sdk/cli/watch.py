"""`sandbox watch`."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.models import WORKSPACE, FileChange


def watch(
    thread: Annotated[str, typer.Argument(metavar="T", help="The thread.")],
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A folder, relative to /workspace.")
    ] = WORKSPACE,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Folders in folders too.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Tell what changes in a folder of a sandbox, as it changes.

    Without an end: Ctrl-C stops it. With --json, a line for every change. A line `gap` says that
    changes are missing.
    """
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_watch(caller, thread, path, recursive=recursive, count=count))


async def _watch(
    caller: Caller, thread: str, path: str, *, recursive: bool, count: int | None
) -> None:
    async with (
        caller.client(thread) as sandbox,
        contextlib.aclosing(sandbox.watch_files(path, recursive=recursive)) as changes,
    ):
        await caller.follow(changes, _line, count)


def _line(change: FileChange) -> str:
    slash = "/" if change.type == "directory" and change.path != "." else ""
    return escaped(f"{change.kind:<6} {change.path}{slash}")
