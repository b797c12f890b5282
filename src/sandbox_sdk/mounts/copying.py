"""Copies folders of this machine into a session, unless it has them."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from sandbox_sdk.folders import send_archive
from sandbox_sdk.mounts.asked import Mount
from sandbox_sdk.mounts.bases import Base, Bases
from sandbox_sdk.mounts.entries import entry_of, walk
from sandbox_sdk.mounts.packing import Packing
from sandbox_sdk.protocol.errors import DiskFull, FileMissing, size_text
from sandbox_sdk.protocol.models import RenameRequest, Session, Target, checked
from sandbox_sdk.protocol.operations import RENAME
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import ByteChunks

log = logging.getLogger("sandbox.client")

MARKS = "/home/sandboxuser/.sandbox/mounts"
"""In a sandbox: files named by the ids of the copies that it has."""
_UNFINISHED = "copying-"
_MOST = 100
_SHOWN = 5


@dataclass(frozen=True)
class Marks:
    """The copies of a sandbox, by what it says."""

    whole: list[str]
    unfinished: list[str]

    @classmethod
    async def of(cls, sandboxes: Sandboxes, target: Target) -> Marks:
        try:
            listed = await sandboxes.list_files(target, path=MARKS, limit=_MOST)
        except FileMissing:
            return cls([], [])
        names = [each.name for each in listed.entries]
        unfinished = [name for name in names if name.startswith(_UNFINISHED)]
        whole = [name for name in names if name not in unfinished]
        return cls(whole, [name.removeprefix(_UNFINISHED) for name in unfinished])


class Copies:
    """The mounts of a client."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self.mounts = mounts
        self._made: list[str] = []

    async def bring(self, sandboxes: Sandboxes, session: Session) -> None:
        """Copy each mount that the session does not have yet. Raises DiskFull, SandboxError and
        OSError, with what was begun left unfinished: the next time it is begun anew."""
        if not self.mounts:
            return
        bases = Bases()
        async with bases.alone(session.thread_id):
            await self._bring(sandboxes, session, bases)

    async def _bring(self, sandboxes: Sandboxes, session: Session, bases: Bases) -> None:
        target = Target(session_id=session.session_id)
        marks = await Marks.of(sandboxes, target)
        for mount in self.mounts:
            found = await _find(bases, marks.whole, mount, session.thread_id)
            if found is not None:
                await anyio.to_thread.run_sync(_tell_what_differs, found[1])
                continue
            begun = await _find(bases, marks.unfinished, mount, session.thread_id)
            if begun is None and not await _is_empty(sandboxes, target, mount.path):
                log.warning(
                    "%s was not copied: thread %s has other files in %s; cleanup() ends its"
                    " session, and the next one has a copy",
                    mount.source, session.thread_id, mount.path,
                )  # fmt: skip
                continue
            copy_id = begun[0] if begun else bases.new_id()
            self._made.append(copy_id)
            await _Copying(sandboxes, session, mount, bases, copy_id).run()

    def forget(self) -> None:
        """Drop the records of what this client has copied: its sandbox has ended for good."""
        while self._made:
            Bases().forget(self._made.pop())


async def _find(
    bases: Bases, copy_ids: Sequence[str], mount: Mount, thread_id: str
) -> tuple[str, Base] | None:
    for copy_id in copy_ids:
        base = await anyio.to_thread.run_sync(bases.load, copy_id, thread_id)
        if base is not None and base.mount == mount:
            return copy_id, base
    return None


async def _is_empty(sandboxes: Sandboxes, target: Target, path: str) -> bool:
    try:
        return not (await sandboxes.list_files(target, path=path, limit=1)).entries
    except FileMissing:
        return True


class _Copying:
    def __init__(
        self, sandboxes: Sandboxes, session: Session, mount: Mount, bases: Bases, copy_id: str
    ) -> None:
        self._sandboxes = sandboxes
        self._target = Target(session_id=session.session_id)
        self._limits = session.limits
        self._mount = mount
        self._bases = bases
        self._copy_id = copy_id

    async def run(self) -> None:
        packing = Packing(self._mount.source, largest=self._limits.upload_limit_bytes)
        await self._check_size(packing)
        base = Base(self._mount)
        self._bases.prune()
        self._bases.save(self._copy_id, base)
        unfinished = f"{MARKS}/{_UNFINISHED}{self._copy_id}"
        await self._sandboxes.upload_file(self._target, unfinished, ByteChunks(b""))
        with tempfile.TemporaryDirectory(prefix="sandbox-mount-") as folder:
            parts = packing.parts(Path(folder, "part.tar"))
            while (part := await anyio.to_thread.run_sync(_next, parts)) is not None:
                await send_archive(self._sandboxes, self._target, part, self._mount.path)
        base.entries = packing.entries
        await anyio.to_thread.run_sync(self._bases.save, self._copy_id, base)
        to = f"{MARKS}/{self._copy_id}"
        request = checked(RenameRequest, **dict(self._target), path=unfinished, to=to, replace=True)
        await self._sandboxes.call(RENAME, request)
        _tell_what_is_left_out(self._mount, packing.left_out)

    async def _check_size(self, packing: Packing) -> None:
        size = await anyio.to_thread.run_sync(packing.size)
        if size > self._limits.disk_bytes:
            raise DiskFull(
                f"{self._mount.source} has {size_text(size)} of files, and the sandbox a disk of"
                f" {size_text(self._limits.disk_bytes)}: mount a folder in it, or ask for more with"
                " limits={'disk': …}"
            )


def _next(parts: Iterator[Path]) -> Path | None:
    return next(parts, None)


def _tell_what_is_left_out(mount: Mount, left_out: Sequence[str]) -> None:
    if left_out:
        shown = "; ".join(left_out[:_SHOWN]) + ("; …" if len(left_out) > _SHOWN else "")
        log.warning("not in the copy of %s: %s", mount.source, shown)


def _tell_what_differs(base: Base) -> None:
    differs = _differing(base)
    if differs:
        more = f" and {len(differs) - _SHOWN} more" if len(differs) > _SHOWN else ""
        log.warning(
            "%s has changed since it was copied, and the sandbox goes on with its copy: %s%s;"
            " cleanup() ends it, and the next one has a new copy",
            base.mount.source, ", ".join(differs[:_SHOWN]), more,
        )  # fmt: skip


def _differing(base: Base) -> list[str]:
    """Paths that are not as they were. Files of the same size and time are not read."""
    found, seen = [], set()
    for above, name, path, status in walk(base.mount.source):
        before = base.entries.get(path)
        seen.add(path)
        if isinstance(status, OSError) or (before is not None and before.looks_like(status)):
            continue
        try:
            now = entry_of(above, name, status)
        except OSError:
            continue
        if now != before and not (before is None and now.kind == "other"):
            found.append(path)
    return sorted([*found, *(base.entries.keys() - seen)])
