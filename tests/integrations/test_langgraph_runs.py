"""Runs of graphs that stop, go on, are nested or lose their box have the right files."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from sandbox_sdk import LocalBackend
from sandbox_sdk.integrations.deepagents import SandboxBackend
from sandbox_sdk.integrations.graph_note import NOTE
from sandbox_sdk.integrations.langchain import SandboxMiddleware, sandbox_tools
from sandbox_sdk.integrations.langgraph_checkpoints import (
    FilesUnavailable,
    SandboxCheckpointSaver,
)
from sandbox_sdk.integrations.presenting import RECREATED, REPLAYED
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.testing.langchain import ScriptedModel
from tests.contract.stand import Stand, served

from .graphs import MODEL, agent, asking, backend, bash, client, files_of, of, said, say, tools

__all__ = ["backend", "tools"]

pytestmark = pytest.mark.timeout(180)


def saver() -> SandboxCheckpointSaver:
    return SandboxCheckpointSaver(InMemorySaver())


def two_tasks(tools: SandboxTools) -> Any:
    """Two tasks in one step: one writes, the other writes and then asks a person."""
    node = ToolNode(sandbox_tools(tools))

    def first(state: MessagesState, config: RunnableConfig) -> Any:
        asked = {"messages": [asking(bash("echo first >> log"), after=1)]}
        return node.invoke(asked, config)

    def second(state: MessagesState, config: RunnableConfig) -> Any:
        node.invoke({"messages": [asking(bash("echo second >> log"), after=2)]}, config)
        answer = interrupt("go on?")
        asked = {"messages": [asking(bash(f"echo {answer} >> log; sort log"), after=3)]}
        return node.invoke(asked, config)

    graph = StateGraph(MessagesState)
    for name, work in (("first", first), ("second", second)):
        graph.add_node(name, work)
        graph.add_edge(START, name)
    return graph.compile(checkpointer=saver())


def test_a_run_that_waits_for_a_person_goes_on_with_what_it_has_done(tools: SandboxTools) -> None:
    graph = two_tasks(tools)
    graph.invoke(say("go"), of())
    assert said(graph.invoke(Command(resume="yes"), of())) == "first\nsecond\nyes"
    waiting = next(s for s in graph.get_state_history(of()) if s.next)
    graph.invoke(None, waiting.config)  # Everything again, and it waits again.
    assert said(graph.invoke(Command(resume="no"), of())) == "first\nno\nsecond"


def crashing(tools: SandboxTools, checkpointer: Any, crashes: list[bool]) -> Any:
    """Runs what it is asked to, and may die before the step is saved."""
    node = ToolNode(sandbox_tools(tools))

    def work(state: MessagesState, config: RunnableConfig) -> Any:
        answer = node.invoke(state, config)
        if crashes.pop(0):
            raise RuntimeError("died")
        return answer

    graph = StateGraph(MessagesState)
    graph.add_node("tools", work)
    graph.add_edge(START, "tools")
    return graph.compile(checkpointer=checkpointer)


def ask(command: str, n: int) -> dict[str, Any]:
    return {"messages": [asking(bash(command), after=n)]}


def test_a_step_that_failed_is_repeated_in_the_sandbox_as_it_is(tools: SandboxTools) -> None:
    graph = crashing(tools, saver(), [True, False])
    with pytest.raises(RuntimeError, match="died"):
        graph.invoke(ask("echo ran >> log; cat log", 0), of())
    assert said(graph.invoke(None, of())) == f"{REPLAYED}\nran"


def test_what_a_failed_step_has_done_is_not_seen_from_before_it(tools: SandboxTools) -> None:
    graph = crashing(tools, saver(), [False, True, False, True, False])
    graph.invoke(ask("echo one > a", 0), of())
    before = graph.get_state(of()).config
    with pytest.raises(RuntimeError, match="died"):
        graph.invoke(ask("echo two > a", 1), of())
    assert said(graph.invoke(ask("cat a", 2), before)) == "one"
    with pytest.raises(RuntimeError, match="died"):
        graph.invoke(ask("echo two >> a; cat a", 3), of())
    failed = graph.get_state(of())
    assert said(graph.invoke(None, failed.config)) == "one\ntwo"  # Run again, not replayed.


def test_a_process_does_not_take_for_its_own_what_another_has_done(tools: SandboxTools) -> None:
    memory = InMemorySaver()
    ours = crashing(tools, SandboxCheckpointSaver(memory), [True])
    other = crashing(tools, SandboxCheckpointSaver(memory), [False])
    with pytest.raises(RuntimeError, match="died"):
        ours.invoke(ask("echo one > a", 0), of())
    failed = ours.get_state(of())
    other.invoke(None, of())
    assert files_of(other.get_state(of()))
    updated = ours.update_state(failed.config, say("no"), as_node="tools")
    assert files_of(ours.get_state(updated)) == files_of(failed) is None


def test_tools_of_a_subgraph_have_the_files_of_the_graph_around_it(tools: SandboxTools) -> None:
    outer = StateGraph(MessagesState)
    outer.add_node("inside", agent(tools, None, MODEL))
    outer.add_edge(START, "inside")
    graph: Any = outer.compile(checkpointer=saver())
    assert said(graph.invoke(say("write one"), of())) == "one"
    one = graph.get_state(of()).config
    assert said(graph.invoke(say("write two"), one)) == "one\ntwo"
    assert said(graph.invoke(say("read"), one)) == "one"


def test_the_middle_of_a_subgraph_has_no_files_of_its_own(tools: SandboxTools) -> None:
    node = ToolNode(sandbox_tools(tools), handle_tool_errors=False)

    def one(state: MessagesState, config: RunnableConfig) -> Any:
        return node.invoke({"messages": [asking(bash("echo one >> a"), after=1)]}, config)

    def two(state: MessagesState, config: RunnableConfig) -> Any:
        command = f"echo {interrupt('what?')} >> a; cat a"
        return node.invoke({"messages": [asking(bash(command), after=2)]}, config)

    inside = StateGraph(MessagesState)
    inside.add_node("one", one)
    inside.add_node("two", two)
    inside.add_edge(START, "one")
    inside.add_edge("one", "two")
    outer = StateGraph(MessagesState)
    outer.add_node("inside", inside.compile())
    outer.add_edge(START, "inside")
    graph: Any = outer.compile(checkpointer=saver())

    graph.invoke(say("go"), of())
    around = graph.get_state(of()).config
    middle = graph.get_state(of(), subgraphs=True).tasks[0].state
    assert middle.next == ("two",)
    assert said(graph.invoke(Command(resume="left"), middle.config)) == "one\nleft"
    with pytest.raises(FilesUnavailable, match="inside a subgraph"):
        graph.invoke(Command(resume="right"), middle.config)
    graph.invoke(None, around)
    assert said(graph.invoke(Command(resume="right"), of())) == "one\nright"


def test_a_graph_within_a_step_of_another_that_has_a_thread_of_its_own(
    tools: SandboxTools,
) -> None:
    within = agent(tools, None, MODEL)

    def call(state: MessagesState, config: RunnableConfig) -> Any:
        own: Any = {"configurable": {**config["configurable"], "thread_id": "copy"}}
        return {"messages": within.invoke(state, own)["messages"]}

    graph = StateGraph(MessagesState)
    graph.add_node("call", call)
    graph.add_edge(START, "call")
    made: Any = graph.compile(checkpointer=saver())
    assert said(made.invoke(say("write one"), of())) == "one"
    one = made.get_state(of()).config
    made.invoke(say("write two"), of())
    assert said(made.invoke(say("read"), one)) == "one\ntwo"  # It is left alone.


def test_a_sandbox_that_several_graphs_share_is_left_alone(tools: SandboxTools) -> None:
    kept = saver()
    agent(tools, kept, MODEL).invoke(say("write one"), of("copy"))
    shared = SandboxBackend(tools, thread_id="copy")
    turns = [[deep("echo two >> a")], [deep("cat a")]]
    graph: Any = create_deep_agent(ScriptedModel(turns=turns), backend=shared, checkpointer=kept)
    graph.invoke(say("add"), of())
    assert said(graph.invoke(say("read"), of())).startswith("one\ntwo\n")


def test_a_run_that_is_saved_at_its_end(tools: SandboxTools) -> None:
    graph = agent(tools, saver(), MODEL)
    graph.invoke(say("write one"), of(), durability="exit")
    one = graph.get_state(of()).config
    graph.invoke(say("write two"), of(), durability="exit")
    assert said(graph.invoke(say("read"), of(), durability="exit")) == "one\ntwo"
    with pytest.raises(FilesUnavailable, match='durability="exit" cannot go back'):
        graph.invoke(say("read"), one, durability="exit")
    assert said(graph.invoke(say("read"), one)) == "one"


def test_a_graph_without_our_saver_is_left_alone(
    tools: SandboxTools, backend: LocalBackend
) -> None:
    for checkpointer, text in ((InMemorySaver(), "write one"), (None, "read")):
        graph = agent(tools, checkpointer, MODEL)
        assert said(graph.invoke(say(text), of())) == "one"
    with client(backend) as sandbox:
        assert not sandbox.exists(NOTE)


def test_an_agent_with_the_middleware(tools: SandboxTools) -> None:
    turns = [[bash("echo one > a")], [bash("echo two >> a")], [bash("cat a")]]
    graph: Any = create_agent(
        ScriptedModel(turns=turns), middleware=[SandboxMiddleware(tools)], checkpointer=saver()
    )
    graph.invoke(say("1"), of())
    one = graph.get_state(of()).config
    graph.invoke(say("2"), of())
    assert said(graph.invoke(say("3"), of())) == "one\ntwo"
    graph.update_state(one, say("2"), as_node="model")
    assert said(graph.invoke(say("3"), of())) == "one"


def deep(command: str) -> dict[str, Any]:
    return {"name": "execute", "args": {"command": command}}


async def test_a_deep_agent_goes_three_ways_and_back(tools: SandboxTools) -> None:
    path = "/workspace/a"
    write = {"name": "write_file", "args": {"file_path": path, "content": "one\n"}}
    turns = [[write], [deep("echo $RANDOM$RANDOM >> a; cat a")], [deep("cat a")]]
    graph: Any = create_deep_agent(
        ScriptedModel(turns=turns), backend=SandboxBackend(tools), checkpointer=saver()
    )
    await graph.ainvoke(say("write"), of())
    start = (await graph.aget_state(of())).config
    ends = []
    for _ in range(3):
        state = await graph.ainvoke(say("add"), start)
        ends.append(((await graph.aget_state(of())).config, said(state)))
    assert len({text for _, text in ends}) == 3
    for config, text in ends:
        assert text.startswith("one\n")
        assert said(await graph.ainvoke(say("read"), config)).strip() == text.strip()


@pytest.fixture
async def remote(stand: Stand) -> AsyncIterator[SandboxTools]:
    async with served(stand.service) as address:
        made = SandboxTools(server_url=address)
        yield made
        await asyncio.to_thread(made.close)


async def test_a_lost_box_comes_back_with_the_files_of_the_graph(
    remote: SandboxTools, stand: Stand
) -> None:
    graph = agent(remote, saver(), MODEL)
    await graph.ainvoke(say("write one"), of())
    await stand.lose_box("t")
    assert said(await graph.ainvoke(say("write two"), of())) == "one\ntwo"


async def test_a_box_that_is_lost_within_a_step_is_told(remote: SandboxTools, stand: Stand) -> None:
    node, losing = ToolNode(sandbox_tools(remote)), [False, True, False]

    async def work(state: MessagesState, config: RunnableConfig) -> Any:
        answer = await node.ainvoke(state, config)
        if losing.pop(0):
            await stand.lose_box("t")
        return answer

    graph = StateGraph(MessagesState)
    graph.add_node("tools", work)
    graph.add_edge(START, "tools")
    made: Any = graph.compile(checkpointer=saver())
    for n, command in enumerate(["echo one > a", "echo two >> a", "cat a"]):
        state = await made.ainvoke({"messages": [asking(bash(command), after=n)]}, of())
    assert said(state) == f"{RECREATED}\none"


def test_the_model_is_not_told_of_a_box_that_goes_back_with_it(tools: SandboxTools) -> None:
    graph = agent(tools, saver(), MODEL)
    graph.invoke(say("write one"), of())
    one = graph.get_state(of()).config
    graph.invoke(say("write two"), of())
    state = graph.invoke(say("read"), one)
    assert [m.text for m in state["messages"] if isinstance(m, ToolMessage)] == [
        "one\n[exit code 0]"
    ] * 2
    assert isinstance(state["messages"][0], HumanMessage)
