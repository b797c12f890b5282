"""What a session has that begins by itself."""

from dataclasses import replace

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import CreateSessionRequest, SessionLimits
from sandbox_server.registry.folder import read_registry
from sandbox_server.service.agents import options_as_before, session_options
from sandbox_server.sessions.registry import Record, Status

REGISTRY = read_registry(None)
REQUEST = CreateSessionRequest(
    thread_id="a", agent="shell", env={"SECRET": "x"}, limits=SessionLimits(pids=33)
)
MADE = session_options(REQUEST, REGISTRY, "t", session_id=None)
LOST = Record(
    tenant="t", thread_id="a", generation=1, session_id="s", box_id="b", status=Status.LOST,
    created_at=0.0, asked=MADE.asked,
)  # fmt: skip


def test_it_has_what_the_lost_one_had_but_for_its_variables() -> None:
    assert "SECRET" not in str(MADE.asked)
    for status in (Status.LOST, Status.EXPIRED, Status.LIVE):
        found = options_as_before(replace(LOST, status=status), REGISTRY, "t")
        assert found == replace(MADE, env={})


@pytest.mark.parametrize(
    "before", [None, replace(LOST, status=Status.CLEANED), replace(LOST, asked={})]
)
def test_otherwise_it_has_the_usual(before: Record | None) -> None:
    found = options_as_before(before, REGISTRY, "t")
    assert (found.made_for, found.environment, found.policy, found.limits) == (None, None, None, {})


@pytest.mark.parametrize("asked", [{"agent": "gone"}, {"of_a_later_version": 1}])
def test_what_is_no_longer_there_is_told_with_what_to_do(asked: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"thread 'a' cannot be made again: .*create_session"):
        options_as_before(replace(LOST, asked=asked), REGISTRY, "t")
