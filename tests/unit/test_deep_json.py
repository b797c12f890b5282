"""JSON of callers and boxes that is nested so deeply that reading it would end in a RecursionError,
which is no ValueError."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandbox_sdk.integrations.operations import Reply
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.api.connect import _check_end
from sandbox_server.registry.agents import Tool
from sandbox_server.service.tools import _json

DEEP = "[" * 100_000


def test_a_message_of_a_connection() -> None:
    with pytest.raises(InvalidRequest, match="text message"):
        _check_end(DEEP)


@pytest.mark.parametrize("printed", [DEEP, "[" * 500 + "]" * 500])
def test_the_output_of_a_tool(printed: str) -> None:
    tool = Tool(name="t", description="d", command="c", output="json")
    answer = _json(tool, Reply("text"), cast(Any, SimpleNamespace(stdout=printed)))
    assert answer.failed
    assert "printed no JSON" in answer.text
    answer.model_dump_json()
