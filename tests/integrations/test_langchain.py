"""LangChain and LangGraph agents whose model is a script, over real boxes."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from examples.langgraph_agent import build, converse
from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.errors import RuntimeUnavailable
from sandbox_sdk.integrations.langchain import (
    SandboxMiddleware,
    bash_tool,
    file_tools,
    sandbox_tools,
)
from sandbox_sdk.integrations.presenting import REPLAYED
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.protocol.models import ExecuteResult
from sandbox_sdk.testing import FakeBackend
from sandbox_sdk.testing.langchain import ScriptedModel
from tests.contract.conftest import RUNTIMES
from tests.contract.stand import Stand, served
from tests.server_process import running

Calls = list[dict[str, Any]]


@pytest.fixture
async def tools(stand: Stand) -> AsyncIterator[SandboxTools]:
    async with served(stand.service) as address:
        made = SandboxTools(server_url=address)
        yield made
        await asyncio.to_thread(made.close)


def of(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def asking(*calls: tuple[str, dict[str, Any]]) -> MessagesState:
    """The state of a graph whose model has asked for these calls, all at once."""
    made = [
        {"name": name, "args": args, "id": f"call_{n}", "type": "tool_call"}
        for n, (name, args) in enumerate(calls)
    ]
    return {"messages": [AIMessage("", tool_calls=made)]}


def only_tools(tools: SandboxTools) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(sandbox_tools(tools), handle_tool_errors=False))
    graph.add_edge(START, "tools")
    return graph.compile()


def replies(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


async def test_the_example(tools: SandboxTools) -> None:
    assert await converse(tools, "example") == [
        "Wrote 39 bytes to /workspace/hello.py",
        "Replaced 1 in /workspace/hello.py",
        "good day world\n[exit code 0]",
    ]


async def test_the_model_gets_text_and_the_program_gets_the_result(tools: SandboxTools) -> None:
    state = await only_tools(tools).ainvoke(asking(("bash", {"command": "exit 3"})), of("t"))
    (reply,) = replies(state)
    assert reply.content == "(no output)\n[exit code 3]"
    assert reply.status == "success"
    assert isinstance(reply.artifact, ExecuteResult)
    assert reply.artifact.exit_code == 3


async def test_mistakes_of_the_model_are_told_to_it(tools: SandboxTools) -> None:
    calls = [("bash", {"cmd": "ls"}), ("read_file", {"path": "none"})]
    state = await only_tools(tools).ainvoke(asking(*calls), of("t"))
    assert [reply.status for reply in replies(state)] == ["error", "error"]
    assert "cmd: there is no such field" in replies(state)[0].text


async def test_ten_calls_at_once(tools: SandboxTools) -> None:
    calls = [("bash", {"command": f"echo {n} | tee out-{n}"}) for n in range(10)]
    state = await only_tools(tools).ainvoke(asking(*calls), of("t"))
    assert [reply.text for reply in replies(state)] == [f"{n}\n[exit code 0]" for n in range(10)]
    listing = await only_tools(tools).ainvoke(asking(("bash", {"command": "cat out-*"})), of("t"))
    assert replies(listing)[0].text == "\n".join(map(str, range(10))) + "\n[exit code 0]"


async def test_output_is_streamed_while_the_command_runs(tools: SandboxTools) -> None:
    slow = {"command": "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two"}
    seen = []
    async for mode, event in only_tools(tools).astream(
        asking(("bash", slow)), of("t"), stream_mode=["custom", "tools"]
    ):
        if mode == "custom":
            seen.append(event["sandbox"])
        if len(seen) == 1 and mode == "custom":
            await tools.adispatch("write_file", {"path": "go", "content": ""}, thread_id="t")
    assert seen == [
        {"tool_call_id": "call_0", "output": "one\n"},
        {"tool_call_id": "call_0", "output": "two\n"},
    ]


async def test_a_node_that_is_replayed_runs_its_command_once(tools: SandboxTools) -> None:
    node = ToolNode(sandbox_tools(tools))
    crashes = [RuntimeError("the process died before the checkpoint"), None]

    async def crashing(state: MessagesState, config: RunnableConfig) -> Any:
        answer = await node.ainvoke(state, config)
        if crash := crashes.pop(0):
            raise crash
        return answer

    graph = StateGraph(MessagesState)
    graph.add_node("tools", crashing)
    graph.add_edge(START, "tools")
    agent = graph.compile(checkpointer=InMemorySaver())
    call = asking(("bash", {"command": "echo ran >> log; wc -l < log"}))
    with pytest.raises(RuntimeError, match="died"):
        await agent.ainvoke(call, of("t"))
    state = await agent.ainvoke(None, of("t"))
    assert crashes == []
    assert replies(state)[0].text == f"{REPLAYED}\n1\n[exit code 0]"


def turns(name: str) -> list[Calls]:
    """A conversation that writes a file, edits it and runs it."""
    return [
        [{"name": "bash", "args": {"command": f"echo 'echo old {name}' > run.sh; ls"}}],
        [{"name": "edit_file", "args": {"path": "run.sh", "old": "old", "new": "new"}}],
        [{"name": "bash", "args": {"command": "sh run.sh; ls"}}],
    ]


async def answering(backend: RemoteBackend) -> None:
    """Wait for a server that has just been started: who never answered is not waited for long."""
    async with backend, asyncio.timeout(60):
        while True:
            try:
                await backend.health()
            except RuntimeUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_conversations_go_on_after_the_server_was_restarted(
    runtime: str, state_dir: Path
) -> None:
    names = ("left", "right")
    async with running(runtime, state_dir) as server:
        backend = RemoteBackend(server.url, retry_for_s=60)
        await answering(backend)
        tools = SandboxTools(backend=backend)
        agents = {
            name: build(ScriptedModel(turns=turns(name)), tools, InMemorySaver()) for name in names
        }

        async def turn(name: str) -> str:
            state = await agents[name].ainvoke({"messages": [HumanMessage("go on")]}, of(name))
            return str(replies(state)[-1].text)

        async def both() -> list[str]:
            return await asyncio.gather(*map(turn, names))

        try:
            assert await both() == ["run.sh\n[exit code 0]"] * 2, server.log()
            await server.stop(signal.SIGTERM)
            await server.start()
            assert await both() == ["Replaced 1 in /workspace/run.sh"] * 2, server.log()
            assert await both() == [f"new {name}\nrun.sh\n[exit code 0]" for name in names]
            await asyncio.gather(*map(tools.acleanup, names))
        finally:
            await asyncio.to_thread(tools.close)


def scripted(*calls: tuple[str, dict[str, Any]]) -> ScriptedModel:
    return ScriptedModel(turns=[[{"name": name, "args": args} for name, args in calls]])


class Listening(ScriptedModel):
    """Notes what it was told before anything else."""

    prompts: list[str]

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.prompts.append(messages[0].text)
        return super()._generate(messages, *args, **options)


@pytest.mark.parametrize("cleanup", [False, True])
async def test_the_middleware_gives_tools_and_words_and_cleans_up(
    tools: SandboxTools, stand: Stand, cleanup: bool
) -> None:
    model = Listening(turns=[[{"name": "bash", "args": {"command": "echo hi"}}]], prompts=[])
    agent = create_agent(
        model,
        system_prompt="You are careful.",
        middleware=[SandboxMiddleware(tools, cleanup=cleanup)],
    )
    state = await agent.ainvoke({"messages": [HumanMessage("go")]}, of("t"))
    assert replies(state)[0].text == "hi\n[exit code 0]"
    assert model.prompts[0].startswith("You are careful.")
    assert "512 MiB of memory" in model.prompts[0]
    assert len((await stand.sandboxes.sessions()).sessions) == (0 if cleanup else 1)


def test_everything_works_without_an_event_loop() -> None:
    fake = FakeBackend()
    fake.on("greet", output="hello\n")
    with SandboxTools(backend=fake) as tools:
        agent = create_agent(
            scripted(("bash", {"command": "greet"}), ("list_files", {})),
            middleware=[SandboxMiddleware(tools, cleanup=True)],
        )
        state = agent.invoke({"messages": [HumanMessage("go")]}, of("t"))
        assert [reply.text for reply in replies(state)] == [
            "hello\n[exit code 0]",
            "/workspace is empty",
        ]
        custom = agent.stream({"messages": [HumanMessage("go")]}, of("t"), stream_mode="custom")
        assert [event["sandbox"]["output"] for event in custom] == ["hello\n"]
        assert bash_tool(tools).invoke({"command": "greet"}, of("t")) == "hello\n[exit code 0]"


def test_a_run_without_a_thread_is_a_mistake_of_the_program() -> None:
    with pytest.raises(ValueError, match="no thread_id"):
        bash_tool(SandboxTools(backend=FakeBackend())).invoke({"command": "ls"})


def test_the_tools_have_schemas_a_model_can_read() -> None:
    tools = SandboxTools(backend=FakeBackend())
    assert [tool.name for tool in file_tools(tools)] == [
        "read_file",
        "write_file",
        "edit_file",
        "list_files",
    ]
    assert set(bash_tool(tools).args) == {"command", "timeout", "restart"}
