"""The tool with which a model takes back what it did."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.integrations.langchain import sandbox_tools
from sandbox_sdk.integrations.tools import AsyncSandboxTools, SandboxTools
from sandbox_sdk.protocol.models import CallToolRequest, CreateSessionRequest
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.runtime.disk_pool import DiskPool
from tests.contract.conftest import RUNTIMES, disk_pool, state_dir
from tests.contract.stand import Stand, lone_standing, make_runtime, open_stand

__all__ = ["disk_pool", "state_dir"]

AGENT = """
name: careful
description: Takes back what went wrong.
tools: [bash, undo]
"""


@pytest.fixture(params=[name for name in RUNTIMES if name == "bubblewrap"])
async def stand(
    request: pytest.FixtureRequest, state_dir: Path, disk_pool: DiskPool, tmp_path: Path
) -> AsyncIterator[Stand]:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "careful.yaml").write_text(AGENT)
    async with (
        make_runtime(str(request.param), state_dir, disks=disk_pool.folder) as runtime,
        lone_standing() as standing,
        open_stand(
            runtime,
            standing,
            images=disk_pool.images / "tool",
            declared=LiveRegistry(tmp_path),
        ) as made,
    ):
        yield made


async def use(tools: AsyncSandboxTools, name: str, call_id: str = "", **given: Any) -> str:
    reply = await tools.dispatch(name, given, thread_id="t", tool_call_id=call_id or None)
    return ("failed: " if reply.failed else "") + reply.text


async def test_undo(stand: Stand) -> None:
    async with AsyncSandboxTools(backend=stand.sandboxes, history=True) as tools:
        begun = await tools.begin("t")
        assert [each["function"]["name"] for each in begun.schemas][-1] == "undo"
        await use(tools, "bash", command="mkdir repo; cd repo; echo 1 > a; x=1")
        await use(tools, "write_file", path="repo/a", content="2")
        await use(tools, "edit_file", path="repo/a", old="2", new="3")
        await use(tools, "bash", command="rm -rf /workspace/*; cd /; x=")
        told = await use(tools, "undo", "call-1")
        assert told == "Files and shell are as they were before: rm -rf /workspace/*; cd /; x="
        # A framework that repeats a call does not take back more.
        assert await use(tools, "undo", "call-1") == told
        assert await use(tools, "bash", command="pwd; cat a; echo $x") == (
            "/workspace/repo\n31\n[exit code 0]"
        )
        await use(tools, "undo", steps=3)  # The look, the edit and the write.
        assert (await use(tools, "bash", command="cat a")).startswith("1\n")
        assert "only 2 steps" in await use(tools, "undo", steps=200)


async def test_without_a_history(stand: Stand) -> None:
    async with AsyncSandboxTools(backend=stand.sandboxes) as tools:
        assert "undo" not in tools.usual
        await use(tools, "bash", command="true")
        assert (await use(tools, "undo")).startswith("failed: ")


async def test_an_agent_of_the_registry(stand: Stand) -> None:
    made = await stand.sandboxes.create_session(
        CreateSessionRequest(thread_id="a", agent="careful")
    )
    assert made.agent is not None
    assert [tool.name for tool in made.agent.tools] == ["bash", "undo"]

    async def call(tool: str, arguments: Mapping[str, Any]) -> str:
        request = CallToolRequest(thread_id="a", tool=tool, arguments=dict(arguments))
        return (await stand.sandboxes.call_tool(request)).text

    await call("bash", {"command": "echo 1 > a"})
    await call("bash", {"command": "rm a"})
    assert (await call("undo", {})).endswith("rm a")
    assert await call("bash", {"command": "cat a"}) == "1\n[exit code 0]"


def test_langchain_has_it_where_there_is_a_history() -> None:
    for history in (True, False):
        with SandboxTools(history=history) as tools:
            names = [tool.name for tool in sandbox_tools(tools)]
            assert ("undo" in names) is history
