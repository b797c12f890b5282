"""`sandbox volumes`."""

from __future__ import annotations

from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import size_text
from sandbox_sdk.protocol.models import Volume

_HEADS = ("VOLUME", "SIZE", "USED", "MADE", "WORKER", "MOUNTED BY")


def volumes(
    create: Annotated[
        str | None, typer.Option("--create", metavar="NAME", help="Make this one.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", metavar="SIZE", help="Of the one to make: 4g.")
    ] = None,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="NAME", help="Delete this one, with its files."),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """List the folders that outlive sessions, and who has them now; make or delete one.

    `--volume` of `sandbox run` and `sandbox shell` gives a sandbox one.
    """
    if (create is not None and delete is not None) or (size is not None and create is None):
        raise typer.BadParameter("--delete stands alone, and --size goes with --create")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    if create is not None:
        caller.run(_create(caller, create, size))
    if delete is not None:
        caller.run(_delete(caller, delete))
    caller.run(_list(caller))


async def _create(caller: Caller, name: str, size: str | None) -> None:
    async with caller.sandboxes() as sandboxes:
        made = await sandboxes.create_volume(name, size=size)
    if caller.json:
        caller.tell(made.to_dict())


async def _delete(caller: Caller, name: str) -> None:
    async with caller.sandboxes() as sandboxes:
        gone = await sandboxes.delete_volume(name)
    if caller.json:
        caller.tell(gone.to_dict())


async def _list(caller: Caller) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.volumes()
    if caller.json:
        caller.tell(found.to_dict())
        return
    caller.table(_HEADS, map(_row, found.volumes))
    if found.unreachable:
        silent = ", ".join(found.unreachable)
        caller.complain(f"no answer from {silent}: the volumes there are not in this list")


def _row(each: Volume) -> tuple[str, ...]:
    return (
        each.name,
        size_text(each.size),
        size_text(each.used),
        f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
        each.worker,
        ", ".join(f"{use.thread_id} ({use.mode})" for use in each.mounted_by),
    )
