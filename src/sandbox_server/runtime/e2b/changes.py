"""Which files a command has changed, for artifacts."""

from __future__ import annotations

from pydantic import ValidationError

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import FileEntry, Listing
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.connection import BoxConnection


class ChangeCalls(BoxConnection):
    """Of BoxAgent. There is no save_artifact in these boxes, so no file is marked."""

    async def changes(
        self, command_id: str | None, *, marked_only: bool, age_s: float | None = None, limit: int
    ) -> Listing:
        if marked_only:
            return Listing([], truncated=False)
        processes = await self.opened()
        code, output, said = await processes.output(
            scripts.CHANGES, command_id or "-", str(age_s or 0)
        )
        if code != 0 and not output:
            why = said.decode("utf-8", "replace").strip()[:200]
            raise errors.RuntimeUnavailable(f"the sandbox cannot tell what has changed: {why}")
        found = [_entry(each) for each in output.decode("utf-8", "replace").split("\0") if each]
        found.sort(key=lambda entry: entry.path.split("/"))
        return Listing(found[:limit], truncated=len(found) > limit)


def _entry(line: str) -> FileEntry:
    """Raises RuntimeUnavailable."""
    try:
        size, mode, changed, owner, group, path = line.split(" ", 5)
        return FileEntry(
            name=path.rpartition("/")[2],
            path=f"{WORKSPACE}/{path}",
            type="file",
            size=int(size),
            mode=f"{int(mode, 8):04o}",
            modified_at=float(changed),
            owner=owner,
            group=group,
        )
    except (ValueError, ValidationError):
        raise errors.RuntimeUnavailable(
            f"the sandbox tells nonsense of a file: {line[:100]!r}"
        ) from None
