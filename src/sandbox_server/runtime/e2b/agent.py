"""E2bAgent: the BoxAgent of E2B sandboxes, which have no warden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox_server.runtime.agent import Ability, BoxAgent, BoxState, CommandSummary, Usage
from sandbox_server.runtime.e2b.changes import ChangeCalls
from sandbox_server.runtime.e2b.commands import CommandCalls
from sandbox_server.runtime.e2b.connection import CommandRecord, Report
from sandbox_server.runtime.e2b.files import FileCalls

LACKS: frozenset[Ability] = frozenset({"code", "pty", "tree", "tunnel", "watch", "pause"})


class E2bAgent(CommandCalls, FileCalls, ChangeCalls, BoxAgent):
    lacks = LACKS

    async def state(self) -> BoxState:
        return self._state(await self.report())

    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        return self._state(await self.report(state))

    async def usage(self) -> Usage:
        found = await self._account.memory_and_disk(self.box_id)
        return self._usage(found or (None, None), pids=(await self.report()).pids)

    async def counts(self) -> Usage:
        return self._usage((None, None), pids=0 if self.about is None else self._pids)

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
