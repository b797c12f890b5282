"""`sandbox artifacts`: files that runs have left, also of sessions that have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sandbox_sdk import transfer
from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import size_text
from sandbox_sdk.protocol.models import Artifact

_HEADS = ("ARTIFACT", "THREAD", "PATH", "SIZE", "TYPE", "MADE")


def artifacts(
    thread: Annotated[
        str | None, typer.Argument(metavar="[T]", help="A thread_id; without one, all threads.")
    ] = None,
    download: Annotated[
        Path | None,
        typer.Option("--download", "-d", metavar="DIR", help="Write them all into this folder."),
    ] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="ARTIFACT", help="Delete this one.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most artifacts.")] = 100,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """List the artifacts of a thread, or of all, newest first; or fetch them.

    A run leaves those it was asked to keep (`sandbox run --artifacts`), and those marked with
    save_artifact in the sandbox.
    """
    if delete is not None and (download is not None or thread is not None):
        raise typer.BadParameter("--delete takes one artifact, and no thread or --download")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    if delete is not None:
        caller.run(_delete(caller, delete))
    caller.run(_artifacts(caller, thread, download, limit))


async def _delete(caller: Caller, artifact_id: str) -> None:
    async with caller.sandboxes() as sandboxes:
        gone = await sandboxes.delete_artifact(artifact_id)
    if caller.json:
        caller.tell(gone.to_dict())


async def _artifacts(caller: Caller, thread: str | None, folder: Path | None, limit: int) -> None:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.artifacts(thread_id=thread, limit=limit)
        places = []
        if folder is not None:
            for artifact in found.artifacts:
                place = _place(folder, artifact)
                async with sandboxes.download_artifact(artifact.artifact_id) as download:
                    places.append(str(await transfer.save(download, place)))
    if caller.json:
        caller.tell({**found.to_dict(), **({"files": places} if folder is not None else {})})
    elif folder is not None:
        print("\n".join(places), end="\n" if places else "")
    else:
        caller.table(_HEADS, map(_row, found.artifacts))
    if found.truncated and not caller.json:
        caller.complain(f"there are more than {limit}: see --limit")
    if found.unreachable and not caller.json:
        silent = ", ".join(found.unreachable)
        caller.complain(f"no answer from {silent}: the artifacts there are not in this list")


def _place(folder: Path, artifact: Artifact) -> Path:
    """Below the folder, by session and path: two runs may have made files of one name."""
    steps = [step for step in artifact.path.split("/") if step not in ("", ".", "..")]
    place = folder.joinpath(artifact.session_id, *steps)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _row(artifact: Artifact) -> tuple[str, ...]:
    return (
        artifact.artifact_id,
        artifact.thread_id,
        artifact.path,
        size_text(artifact.size),
        artifact.mime,
        f"{artifact.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
    )
