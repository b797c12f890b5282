"""Names that others choose are data: none of them is taken for one of ours."""

from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import CommandRejected, SandboxError, SessionLost
from sandbox_sdk.protocol.models import ExecuteRequest
from sandbox_server.main import open_gate
from sandbox_server.settings import Settings

RULES = """
mode: blacklist
rules:
  - id: {id}
    deny: {{command: forbidden}}
    reason: it is
"""


@pytest.mark.parametrize("name", ["event", "level", "timestamp", "self", "allowed"])
async def test_a_rule_may_have_any_id(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES.format(id=name))
    with open_gate(Settings(policy=str(path))) as gate:
        with pytest.raises(CommandRejected):
            await gate.admit(
                ExecuteRequest(thread_id="t", command="forbidden"), environment=None, tenant="t"
            )
        assert (gate.allowed, gate.rejected) == (0, {name: 1})


@pytest.mark.parametrize("name", ["message", "self", "code", "details", "may_have_arrived"])
def test_the_details_of_an_error_may_have_any_name(name: str) -> None:
    error = SandboxError.from_wire("session_lost", "gone", {name: 1})
    assert isinstance(error, SessionLost)
    assert (error.message, error.details) == ("gone", {name: 1})
