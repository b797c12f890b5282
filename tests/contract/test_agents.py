"""Sessions that are made for an agent, and calls of tools, over every way to a sandbox."""

import pytest

from sandbox_sdk import Sandboxes, errors
from sandbox_sdk.protocol.models import (
    CallToolRequest,
    CreateSessionRequest,
    ExecuteRequest,
    SessionLimits,
    Target,
)
from tests.contract.stand import Place

SHELL = CreateSessionRequest(thread_id="a", agent="shell")


def call(
    tool: str, *, thread: str = "a", key: str | None = None, **given: object
) -> CallToolRequest:
    return CallToolRequest(thread_id=thread, tool=tool, arguments=given, idempotency_key=key)


@pytest.mark.seam
async def test_a_session_for_an_agent(sandboxes: Sandboxes) -> None:
    listed = {agent.name: agent for agent in (await sandboxes.registry()).agents}
    assert {"code_executor", "shell"} <= listed.keys()

    made = await sandboxes.create_session(SHELL)
    assert made.agent is not None
    assert (made.status, made.agent.name, made.agent.tools) == (
        "created",
        "shell",
        listed["shell"].tools,
    )
    assert [tool.name for tool in made.agent.tools] == ["bash"]
    assert made.agent.tools[0].parameters["properties"]["command"]["type"] == "string"
    assert made.agent.prompt

    plain = await sandboxes.create_session(CreateSessionRequest(thread_id="a"))
    assert (plain.agent, plain.not_applied) == (made.agent, [])
    other = await sandboxes.create_session(
        CreateSessionRequest(thread_id="a", agent="code_executor")
    )
    assert (other.agent, "agent" in other.not_applied) == (made.agent, True)
    assert (await sandboxes.session(Target(thread_id="a"))).agent == made.agent

    answer = await sandboxes.call_tool(call("bash", command="echo one"))
    assert (answer.text, answer.failed) == ("one\n[exit code 0]", False)
    assert answer.result is not None
    assert answer.result.session_id == made.session_id
    with pytest.raises(errors.InvalidRequest, match="there is no tool 'read_file', only bash"):
        await sandboxes.call_tool(call("read_file", path="x"))
    with pytest.raises(errors.InvalidRequest, match="comand: there is no such field"):
        await sandboxes.call_tool(call("bash", comand="x"))
    assert (await sandboxes.cleanup(Target(thread_id="a"))).agent == "shell"


async def test_an_unknown_agent_is_named_with_those_there_are(sandboxes: Sandboxes) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"no agent 'shel'.*shell.*there are: code_ex"):
        await sandboxes.create_session(CreateSessionRequest(thread_id="a", agent="shel"))
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.session(Target(thread_id="a"))


async def test_a_tool_is_called_once_and_makes_the_session(sandboxes: Sandboxes) -> None:
    for _ in range(2):
        answer = await sandboxes.call_tool(call("write_file", path="file", content="x\n"))
        assert answer.text == "Wrote 2 bytes to /workspace/file"
    once = call("bash", key="once", command="sleep 0.2; echo x >> n; wc -l < n")
    first, again = await sandboxes.call_tool(once), await sandboxes.call_tool(once)
    assert first.text == "1\n[exit code 0]"
    assert again.text == f"[answered from an earlier call with this id]\n{first.text}"
    ran = await sandboxes.execute(ExecuteRequest(thread_id="a", command="cat file"))
    by_session = CallToolRequest(
        session_id=ran.session_id, tool="read_file", arguments={"path": "file"}
    )
    assert "x" in (await sandboxes.call_tool(by_session)).text
    unknown = by_session.model_copy(update={"session_id": "00000000-0000-0000-0000-000000000000"})
    with pytest.raises(errors.SessionNotFound):
        await sandboxes.call_tool(unknown)
    with pytest.raises(errors.FileMissing):
        await sandboxes.call_tool(call("read_file", path="nothing"))


async def test_a_session_that_begins_by_itself_is_as_the_lost_one_was(
    stand: Place, sandboxes: Sandboxes
) -> None:
    asked = SHELL.model_copy(update={"idle_timeout_s": 123.0, "limits": SessionLimits(pids=33)})
    made = await sandboxes.create_session(asked)
    await stand.lose_box("a")
    with pytest.raises(errors.SessionLost):
        await sandboxes.execute(ExecuteRequest(session_id=made.session_id, command="true"))
    with pytest.raises(errors.InvalidRequest, match="there is no tool 'read_file', only bash"):
        await sandboxes.call_tool(call("read_file", path="x"))
    ran = await sandboxes.execute(ExecuteRequest(thread_id="a", command="true"))
    assert (ran.session_state, ran.generation) == ("recreated", 2)
    again = await sandboxes.session(Target(thread_id="a"))
    assert (again.agent, again.limits.pids, again.generation) == (made.agent, 33, 2)

    cleaned = await sandboxes.cleanup(Target(thread_id="a"))
    assert (cleaned.agent, cleaned.idle_timeout_s) == ("shell", 123)
    await sandboxes.execute(ExecuteRequest(thread_id="a", command="true"))
    after = await sandboxes.session(Target(thread_id="a"))
    assert (after.agent, after.limits.pids == 33) == (None, False)
