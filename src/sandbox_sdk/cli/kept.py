"""`sandbox artifacts` and `volumes`: what outlives sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sandbox_sdk import transfer
from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.protocol.errors import size_text
from sandbox_sdk.protocol.models import Artifact, Volume

_ARTIFACT = ("ARTIFACT", "THREAD", "PATH", "SIZE", "TYPE", "MADE")
_VOLUME = ("VOLUME", "SIZE", "USED", "MADE", "WORKER", "MOUNTED BY")


async def artifacts(
    thread: Annotated[
        str | None, typer.Argument(metavar="[T]", help="A thread_id; without one, all threads.")
    ] = None,
    *,
    download: Annotated[
        Path | None,
        typer.Option("--download", "-d", metavar="DIR", help="Write them all into this folder."),
    ] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="ARTIFACT", help="Delete this one.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most artifacts.")] = 100,
    caller: Caller,
) -> None:
    """List the artifacts of a thread, or of all, newest first; or fetch them.

    A run leaves those it was asked to keep (`sandbox run --artifacts`), and those marked with
    save_artifact in the sandbox.
    """
    if delete is not None and (download is not None or thread is not None):
        raise typer.BadParameter("--delete takes one artifact, and no thread or --download")
    async with caller.sandboxes() as sandboxes:
        if delete is not None:
            caller.say(await sandboxes.delete_artifact(delete))
            return
        found = await sandboxes.artifacts(thread_id=thread, limit=limit)
        files = []
        if download is not None:
            for artifact in found.artifacts:
                place = _place(download, artifact)
                async with sandboxes.download_artifact(artifact.artifact_id) as content:
                    files.append(str(await transfer.save(content, place)))
    if download is not None:
        caller.say({**found.to_dict(), "files": files}, "\n".join(files))
    else:
        caller.say_table(found, _ARTIFACT, map(_artifact, found.artifacts))
    caller.complain_of_cut(limit, truncated=found.truncated)
    caller.complain_of_missing(found.unreachable, "the artifacts there are not in this list")


def _place(folder: Path, artifact: Artifact) -> Path:
    """Below the folder, by session and path: two runs may have made files of one name."""
    steps = [step for step in artifact.path.split("/") if step not in ("", ".", "..")]
    place = folder.joinpath(artifact.session_id, *steps)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _artifact(each: Artifact) -> tuple[str, ...]:
    made = f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return each.artifact_id, each.thread_id, each.path, size_text(each.size), each.mime, made


async def volumes(
    *,
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
    caller: Caller,
) -> None:
    """List the folders that outlive sessions, and who has them now; make or delete one.

    `--volume` of `sandbox run` and `sandbox shell` gives a sandbox one.
    """
    if (create is not None and delete is not None) or (size is not None and create is None):
        raise typer.BadParameter("--delete stands alone, and --size goes with --create")
    async with caller.sandboxes() as sandboxes:
        if create is not None:
            caller.say(await sandboxes.create_volume(create, size=size))
        elif delete is not None:
            caller.say(await sandboxes.delete_volume(delete))
        else:
            found = await sandboxes.volumes()
            caller.say_table(found, _VOLUME, map(_volume, found.volumes))
            caller.complain_of_missing(found.unreachable, "the volumes there are not in this list")


def _volume(each: Volume) -> tuple[str, ...]:
    users = ", ".join(f"{use.thread_id} ({use.mode})" for use in each.mounted_by)
    made = f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return each.name, size_text(each.size), size_text(each.used), made, each.worker, users
