"""What boxes at E2B cannot do is refused with an error that says so, before anything happens."""

import inspect
from collections.abc import Awaitable
from importlib import import_module

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    ConnectRequest,
    CreateSessionRequest,
    ExecuteRequest,
    Pty,
    RunCodeRequest,
    SessionLimits,
    Target,
    WatchFilesRequest,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .without_e2b import WHY

pytestmark = pytest.mark.only_e2b

T = Target(thread_id="t")


async def refused(call: Awaitable[object], says: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=says):
        await call


async def test_what_a_session_cannot_do(sandboxes: Sandboxes) -> None:
    await sandboxes.execute(ExecuteRequest(thread_id="t", command="true"))
    pty = ExecuteRequest(thread_id="t", command="true", pty=Pty())
    await refused(sandboxes.execute(pty), "pty")
    code = RunCodeRequest(thread_id="t", code="1", language="python")
    await refused(sandboxes.call(op.RUN_CODE, code), "code")
    await refused(sandboxes.call(op.CHECKPOINT, CheckpointRequest(thread_id="t")), "tree")
    await refused(sandboxes.pause(T), "pause")
    await refused(sandboxes.call(op.WATCH, WatchFilesRequest(thread_id="t", path=".")), "cannot")
    with pytest.raises(errors.InvalidRequest, match="connections"):
        async with sandboxes.connect(ConnectRequest(thread_id="t", port=80)):
            pass
    assert (await sandboxes.execute(ExecuteRequest(thread_id="t", command="echo on"))).output


async def test_what_a_session_cannot_have(sandboxes: Sandboxes) -> None:
    for limits in ({"memory": "256m"}, {"cpus": 1}, {"pids": 100}, {"disk": "2g"}):
        request = CreateSessionRequest(limits=checked(SessionLimits, **limits))
        await refused(sandboxes.create_session(request), "has no effect on e2b boxes")
    for network in ("allowlist", "open"):
        await refused(sandboxes.create_session(CreateSessionRequest(network=network)), network)


def test_what_is_left_out_is_there() -> None:
    """A test that was renamed would be left out for no reason, or run."""
    for name in WHY:
        module, _, test = name.partition("::")
        found = import_module(f"tests.contract.{module}")
        assert not test or inspect.iscoroutinefunction(getattr(found, test, None)), name
