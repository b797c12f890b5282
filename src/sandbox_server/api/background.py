"""Commands that were started before: how they stand, and what can be done to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from sandbox_sdk.protocol.models import (
    CommandInfo,
    CommandList,
    CommandTarget,
    ExecuteResult,
    SignalRequest,
    StdinReceipt,
    StdinRequest,
    Target,
)
from sandbox_server.api.dependencies import Asked, QueryTarget

CommandId = Annotated[str, Query(min_length=1, max_length=128, description="The command.")]


async def command(asked: Asked, target: QueryTarget, command_id: CommandId) -> ExecuteResult:
    """How a command stands, with the output kept so far; `exit_code` is null while it runs. Asking
    does not count as use of the session."""
    return await asked.sandboxes.result(target, command_id, tenant=asked.tenant)


async def commands(asked: Asked, target: QueryTarget) -> CommandList:
    """The commands a session knows: those that run, and the newest of those that ended. Asking does
    not count as use of the session."""
    return await asked.sandboxes.commands(target, tenant=asked.tenant)


async def signal(asked: Asked, body: SignalRequest) -> CommandInfo:
    """Send a signal to all processes of a command. `KILL` ends everything it has started, daemons
    included. A command that has ended is left alone, and answered as it is."""
    return await asked.sandboxes.signal(
        _target(body), body.command_id, signal=body.signal, tenant=asked.tenant
    )


async def stdin(asked: Asked, body: StdinRequest) -> StdinReceipt:
    """Send input to a command that was started with `stdin_open`. With an `offset` the call may be
    repeated: what has come before is not written again."""
    return await asked.sandboxes.send_stdin(
        _target(body),
        body.command_id,
        body.data_bytes(),
        eof=body.eof,
        offset=body.offset,
        tenant=asked.tenant,
    )


def _target(body: CommandTarget) -> Target:
    return Target(thread_id=body.thread_id, session_id=body.session_id)
