"""`sandbox cp`: files and folders between this machine and a sandbox."""

from __future__ import annotations

import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer

from sandbox_sdk import transfer
from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.unpack import unpack
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.folders import send_archive
from sandbox_sdk.left_out import take_notice
from sandbox_sdk.protocol.errors import FileMissing
from sandbox_sdk.protocol.models import WORKSPACE, Target


@dataclass(frozen=True)
class Place:
    """One end of a copy: in a thread's sandbox, or here where thread is empty."""

    thread: str
    path: str

    @classmethod
    def of(cls, text: str) -> Place:
        """T:PATH or a local path.

        A thread_id may have colons but no slash, so the colon that counts is the last one before
        the first slash. A local name with a colon is written ./like:this.
        """
        head = text.split("/", 1)[0]
        thread, colon, _ = head.rpartition(":")
        return cls(thread, text[len(thread) + 1 :]) if colon and thread else cls("", text)


async def cp(
    source: Annotated[str, typer.Argument(metavar="FROM", help="LOCAL or T:PATH.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="T:PATH or LOCAL.")],
    *,
    caller: Caller,
) -> None:
    """Copy a file or a folder into a sandbox or out of it.

    T:PATH is a path in the sandbox of thread T, relative to /workspace. Where TO is a folder that
    exists, or ends in a slash, the copy goes into it under its own name.
    """
    from_, to = Place.of(source), Place.of(target)
    if bool(from_.thread) == bool(to.thread):
        raise typer.BadParameter(
            f"exactly one of FROM and TO has to be T:PATH, not {source!r} and {target!r}"
        )
    if to.thread:
        async with caller.client(to.thread) as sandbox:
            told = await _upload(sandbox, Path(from_.path), to.path)
    else:
        try:
            told = await _download(caller, from_, Path(to.path))
        except FileMissing as exc:
            raise FileMissing(f"thread {from_.thread}: {exc.message}") from exc
    if caller.json:
        caller.tell({"status": "copied", **told})


async def _upload(sandbox: AsyncSandboxClient, local: Path, path: str) -> dict[str, Any]:
    if path in ("", ".") or path.endswith("/") or await _is_folder(sandbox, path):
        path = str(PurePosixPath(path, local.resolve().name))
    if not local.is_dir():
        done = await sandbox.upload_file(local, path)
        return {"type": "file", "path": done.path, "size": done.size, "sha256": done.sha256}
    size = await _upload_folder(sandbox, local, path)
    return {"type": "directory", "path": path, "size": size}


async def _is_folder(sandbox: AsyncSandboxClient, path: str) -> bool:
    try:
        entries = (await sandbox.list_files(path, limit=2)).entries
    except FileMissing:
        return False
    # Of a file, the file itself is listed.
    return [PurePosixPath(each.path) for each in entries] != [PurePosixPath(WORKSPACE, path)]


async def _upload_folder(sandbox: AsyncSandboxClient, local: Path, path: str) -> int:
    """Upload as one archive, so that modes, links and empty folders arrive. Returns its size."""
    with tempfile.NamedTemporaryFile(prefix="sandbox-cp-", suffix=".tar") as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            # The folder itself, where a link was named; links in it stay links.
            tar.add(local.resolve(), arcname=".", filter=_anonymous)
        archive.flush()
        sandboxes, target = await sandbox._connection.ready()
        folder = str(PurePosixPath(WORKSPACE, path))
        return await send_archive(sandboxes, target, Path(archive.name), folder)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Files belong to the user of the sandbox, whoever owns them here."""
    member.uid = member.gid = 1000
    member.uname = member.gname = ""
    return member


async def _download(caller: Caller, from_: Place, local: Path) -> dict[str, Any]:
    async with (
        caller.sandboxes() as sandboxes,
        sandboxes.download_file(Target(thread_id=from_.thread), from_.path or ".") as download,
    ):
        info = download.info
        if local.is_dir():
            local = local / transfer.own_name(info)
        if info.type == "file":
            saved = await transfer.save(download, local)
            return {"type": "file", "path": str(saved), "size": info.size, "sha256": info.sha256}
        with tempfile.TemporaryDirectory(prefix="sandbox-cp-") as folder:
            archive = await transfer.save(download, Path(folder, "folder.tar"), warn=False)
            told = take_notice(archive)
            left_out = unpack(archive, local)
            size = archive.stat().st_size
    for line in () if caller.json else told:
        caller.complain(f"left out: {line}")
    for name in () if caller.json else left_out:
        caller.complain(f"{name} was left out: not a file, or a link that leads out of the folder")
    return {"type": "directory", "path": str(local), "size": size, "left_out": [*told, *left_out]}
