"""The table of operations, and those who have to know all of it."""

from collections import Counter
from typing import Any, cast

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.models import ExecuteRequest, SignalRequest, StdinRequest
from sandbox_sdk.protocol.operations import OPERATIONS
from sandbox_sdk.testing import FakeBackend
from sandbox_server.service import SandboxService
from sandbox_server.service.gate import Gate


def test_every_operation_has_a_handler_everywhere() -> None:
    nothing = cast(Any, None)
    service = SandboxService(nothing, nothing, health=nothing, gate=Gate.default())
    assert service.handlers.keys() == set(OPERATIONS)
    assert FakeBackend()._handlers.keys() == set(OPERATIONS)


def test_names_and_routes_are_of_one_each() -> None:
    assert max(Counter(each.name for each in OPERATIONS).values()) == 1
    routes = Counter((each.method, each.path) for each in OPERATIONS if each is not op.CHECK)
    assert max(routes.values()) == 1


def test_what_may_be_repeated() -> None:
    run = ExecuteRequest(thread_id="t", command="make")
    assert not op.EXECUTE.repeatable(run)
    assert op.EXECUTE.prepare is not None
    keyed = op.EXECUTE.prepare(run)
    assert op.EXECUTE.repeatable(keyed)
    assert op.EXECUTE.prepare(keyed) is keyed
    about: dict[str, Any] = {"thread_id": "t", "command_id": "c"}
    signals = [op.SIGNAL.repeatable(SignalRequest(**about, signal=s)) for s in ("KILL", "TERM")]
    assert signals == [True, False]
    offsets = [op.STDIN.repeatable(StdinRequest(**about, offset=at)) for at in (0, None)]
    assert offsets == [True, False]
