"""E2bAgent: the BoxAgent of E2B sandboxes, which have no warden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import (
    Ability,
    BoxAgent,
    BoxState,
    CommandSummary,
    FileEntry,
    Listing,
    Usage,
)
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.commands import CommandCalls
from sandbox_server.runtime.e2b.connection import CommandRecord, Report
from sandbox_server.runtime.e2b.files import FileCalls


class E2bAgent(CommandCalls, FileCalls, BoxAgent):
    lacks = frozenset[Ability]({"code", "pty", "tree", "tunnel", "watch", "pause"})

    async def state(self) -> BoxState:
        return self._state(await self.report())

    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        return self._state(await self.report(state))

    async def usage(self) -> Usage:
        found = await self._account.memory_and_disk(self.box_id)
        return self._usage(found or (None, None), pids=(await self.report()).pids)

    async def counts(self) -> Usage:
        return self._usage((None, None), pids=0 if self.about is None else self._pids)

    async def changes(
        self, command_id: str | None, *, marked_only: bool, age_s: float | None = None, limit: int
    ) -> Listing:
        """There is no save_artifact in these boxes, so no file is marked."""
        if marked_only:
            return Listing([], truncated=False)
        processes = await self.opened()
        code, output, said = await processes.output(
            scripts.CHANGES, command_id or "-", str(age_s or 0)
        )
        if code != 0 and not output:
            why = said.decode("utf-8", "replace").strip()[:200]
            raise errors.RuntimeUnavailable(f"the sandbox cannot tell what has changed: {why}")
        found = [_changed(each) for each in output.decode("utf-8", "replace").split("\0") if each]
        found.sort(key=lambda entry: entry.path.split("/"))
        return Listing(found[:limit], truncated=len(found) > limit)

    def _usage(self, found: tuple[int | None, int | None], *, pids: int) -> Usage:
        return Usage(
            cpu_s=self.cpu_s,
            memory_bytes=found[0],
            disk_bytes=found[1],
            pids=pids,
            commands=self._ran,
            command_ms=self.command_ms,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
        )

    def _state(self, report: Report) -> BoxState:
        """Commands of an earlier process as they are in the sandbox, the others as we know them."""
        assert self.about is not None
        known = [each for each in self._commands.values() if not each.call.own]
        own = {each.id for each in self._commands.values()}
        earlier = [_summary(each) for id_, each in report.commands.items() if id_ not in own]
        return BoxState(
            **dict(self.about), commands=[*earlier, *(each.summary() for each in known)]
        )


def _summary(record: CommandRecord) -> CommandSummary:
    return CommandSummary(
        command_id=record.command_id,
        idempotency_key=None,
        running=record.running,
        exit_code=record.exit_code,
        age_s=record.age_s,
        output_bytes=0,
        late_bytes=0,
        pid=record.pid if record.running else None,
    )


def _changed(line: str) -> FileEntry:
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
