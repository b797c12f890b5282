"""Graphs whose checkpoints have the files of their sandbox: real graphs, savers and boxes."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from sandbox_sdk import LocalBackend
from sandbox_sdk.errors import CheckpointNotFound, InvalidRequest
from sandbox_sdk.integrations.graph_files import CHECKPOINT_KEY, NOT_KEPT_KEY, GraphFiles
from sandbox_sdk.integrations.langgraph_checkpoints import (
    FilesUnavailable,
    SandboxCheckpointSaver,
)
from sandbox_sdk.integrations.tools import SandboxTools

from .graphs import (
    KINDS,
    MODEL,
    Savers,
    Script,
    Steps,
    agent,
    asking,
    backend,
    bash,
    client,
    files_of,
    of,
    opened,
    own_state,
    said,
    savers,
    say,
    tools,
)

__all__ = ["backend", "own_state", "savers", "tools"]

pytestmark = pytest.mark.timeout(180)


def test_three_ways_from_one_checkpoint_and_back(tools: SandboxTools, savers: Savers) -> None:
    with savers() as inner:
        graph = agent(tools, SandboxCheckpointSaver(inner), MODEL)
        assert said(graph.invoke(say("write one"), of())) == "one"
        start = graph.get_state(of()).config
        assert str(files_of(graph.get_state(of()))).startswith("cp-")

        ends = {}
        for name in ("left", "middle", "right"):
            assert said(graph.invoke(say(name), start)) == f"one\n{name}"
            ends[name] = graph.get_state(of()).config

        for name, end in ends.items():
            assert said(graph.invoke(say("way"), end)) == f"one\n{name}\n{name}"
        assert said(graph.invoke(say("way"), start)) == "one"


def test_an_old_checkpoint_runs_again_with_its_files(tools: SandboxTools, savers: Savers) -> None:
    with savers() as inner:
        graph = agent(tools, SandboxCheckpointSaver(inner), MODEL)
        graph.invoke(say("write one"), of())
        graph.invoke(say("write two"), of())
        history = list(graph.get_state_history(of()))
        before = [s for s in history if s.next == ("tools",)]
        assert said(graph.invoke(None, before[0].config)) == "one\ntwo"  # Not "one\ntwo\ntwo".
        assert said(graph.invoke(None, before[1].config)) == "one"
        assert said(graph.invoke(say("read"), history[0].config)) == "one\ntwo"


def test_before_the_first_tool_the_files_are_those_that_were_there(
    tools: SandboxTools, backend: LocalBackend
) -> None:
    with client(backend) as sandbox:
        sandbox.write_text("given.csv", "1,2")
        graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), MODEL)
        graph.invoke(say("tidy"), of())
        first = [*graph.get_state_history(of())][-1]
        assert first.metadata.get(CHECKPOINT_KEY) is None
        assert said(graph.invoke(say("list"), first.config)) == "given.csv "


def test_a_checkpoint_is_taken_only_after_a_step_that_may_have_changed_something(
    tools: SandboxTools, backend: LocalBackend
) -> None:
    graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), MODEL)
    graph.invoke(say("hello"), of())
    with client(backend) as sandbox:
        assert sandbox.sessions().sessions == []  # Nothing made one.
        graph.invoke(say("write one"), of())
        graph.invoke(say("look"), of())
        graph.invoke(say("hello"), of())
        graph.update_state(of(), say("noted"), as_node="tools")
        taken = sandbox.checkpoints()
        assert [each.name for each in taken] == ["langgraph", "before the first tool"]
    history = [*graph.get_state_history(of())]
    having = [s for s in history if files_of(s)]
    assert {files_of(s) for s in having} == {taken[0].checkpoint_id}
    assert having == history[: len(having)]
    assert taken[0].metadata == {"langgraph": having[-1].config["configurable"]["checkpoint_id"]}


def test_a_tool_waits_for_the_checkpoint_of_the_step_before(
    tools: SandboxTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph saves in the background, and what is taken then must not have what comes next."""
    take = GraphFiles._take

    async def late(*args: Any) -> Any:
        await anyio.sleep(0.5)
        return await take(*args)

    monkeypatch.setattr(GraphFiles, "_take", late)
    model = Steps(["echo one > a"], ["echo two > a"], ["cat a"])
    graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), model)
    graph.invoke(say("go"), of(), durability="async")
    second = [s for s in graph.get_state_history(of()) if s.next == ("tools",)][1]
    state = graph.update_state(
        second.config, {"messages": [asking(bash("cat a"), after=0)]}, as_node="model"
    )
    assert said(graph.invoke(None, state)) == "one"


def test_calls_at_once_go_back_once(tools: SandboxTools, backend: LocalBackend) -> None:
    many = [f"echo {n} > n{n}; cat a" for n in range(5)]
    graph = agent(
        tools, SandboxCheckpointSaver(InMemorySaver()), Steps(["echo one > a"], many, ["echo > a"])
    )
    state = graph.invoke(say("go"), of())
    with client(backend) as sandbox:
        generation = sandbox.session().generation
        asked = [s for s in graph.get_state_history(of()) if s.next == ("tools",) * 1]
        again = graph.invoke(None, asked[1].config)
        assert sandbox.session().generation == generation + 1
        assert sandbox.execute("cat n?").output == "0\n1\n2\n3\n4\n"
    texts = [m.text for m in again["messages"] if isinstance(m, ToolMessage)]
    assert texts == [m.text for m in state["messages"] if isinstance(m, ToolMessage)]
    assert texts[1:6] == ["one\n[exit code 0]"] * 5


def test_a_program_that_is_run_again_finds_what_the_sandbox_has(
    tools: SandboxTools, tmp_path: Path
) -> None:
    """Another process has gone back in the graph without running a tool: the sandbox is ahead."""

    def graph(saver: Any) -> Any:
        return agent(tools, SandboxCheckpointSaver(saver), MODEL)

    with SqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:
        graph(saver).invoke(say("write one"), of())
        one = graph(saver).get_state(of()).config
        graph(saver).invoke(say("write two"), of())
        two = graph(saver).get_state(of()).config
        graph(saver).update_state(one, say("back"), as_node="tools")
        assert said(graph(saver).invoke(say("read"), of())) == "one"
        assert said(graph(saver).invoke(say("read"), two)) == "one\ntwo"
        tools.cleanup("t")
        assert said(graph(saver).invoke(say("read"), of())) == "one\ntwo"


def test_a_fork_of_the_thread_is_a_fork_of_the_sandbox(
    tools: SandboxTools, savers: Savers, backend: LocalBackend
) -> None:
    with savers() as inner:
        saver = SandboxCheckpointSaver(inner)
        graph = agent(tools, saver, MODEL)
        graph.invoke(say("write one"), of())
        saver.copy_thread("t", "copy")
        graph.invoke(say("write two"), of())
        with client(backend, "copy") as sandbox:
            assert "copy" not in [s.thread_id for s in sandbox.sessions().sessions]
        assert said(graph.invoke(say("read"), of("copy"))) == "one"
        assert said(graph.invoke(say("other"), of("copy"))) == "one\nother"
        assert said(graph.invoke(say("read"), of())) == "one\ntwo"
        copied = [s for s in graph.get_state_history(of("copy")) if s.next == ("tools",)]
        assert said(graph.invoke(None, copied[1].config)) == "one"


async def test_everything_in_an_event_loop(tools: SandboxTools, tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as inner:
        saver = SandboxCheckpointSaver(inner)
        graph = agent(tools, saver, MODEL)
        assert said(await graph.ainvoke(say("write one"), of())) == "one"
        start = (await graph.aget_state(of())).config
        assert said(await graph.ainvoke(say("write two"), of())) == "one\ntwo"
        await saver.acopy_thread("t", "copy")
        assert said(await graph.ainvoke(say("read"), start)) == "one"
        assert said(await graph.ainvoke(say("read"), of("copy"))) == "one\ntwo"
        asked = [s async for s in graph.aget_state_history(of("copy")) if s.next == ("tools",)]
        assert said(await graph.ainvoke(None, asked[1].config)) == "one\ntwo"
        with pytest.raises(FilesUnavailable, match="before its first tool"):
            await graph.ainvoke(None, asked[-1].config)
        await saver.adelete_thread("copy")
        assert [s async for s in graph.aget_state_history(of("copy"))] == []


def test_a_copied_checkpoint_has_the_files_of_the_original(tools: SandboxTools) -> None:
    graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), MODEL)
    graph.invoke(say("write one"), of())
    graph.invoke(say("write two"), of())
    after = next(s for s in graph.get_state_history(of()) if s.next == ("model",))
    before = graph.get_state(after.parent_config)
    assert files_of(after) != files_of(before)
    copied = graph.update_state(after.config, None, as_node="__copy__")
    assert files_of(graph.get_state(copied)) == files_of(after)


def test_a_deleted_checkpoint_is_told_and_changes_nothing(
    tools: SandboxTools, backend: LocalBackend
) -> None:
    graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), MODEL)
    graph.invoke(say("write one"), of())
    one = graph.get_state(of())
    graph.invoke(say("write two"), of())
    two = graph.get_state(of()).config
    with client(backend) as sandbox:
        sandbox.delete_checkpoint(files_of(one) or "")
        with pytest.raises(FilesUnavailable, match=files_of(one)) as told:
            graph.invoke(say("read"), one.config)
        assert isinstance(told.value.__cause__, CheckpointNotFound)
        assert told.value.thread_id == "t"
        assert sandbox.read_text("a") == "one\ntwo\n"
    assert said(graph.invoke(say("read"), two)) == "one\ntwo"


@pytest.mark.parametrize("runtime", KINDS)
def test_a_server_without_checkpoints_is_told_before_the_first_tool(
    runtime: str, own_state: Path
) -> None:
    backend = LocalBackend(runtime=runtime, state_dir=own_state, checkpoints="off")
    with opened(backend) as tools:
        graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), MODEL)
        with pytest.raises(FilesUnavailable, match="SANDBOX_CHECKPOINTS is off") as told:
            graph.invoke(say("write one"), of())
        assert isinstance(told.value.__cause__, InvalidRequest)
        assert graph.get_state(of()).next == ("tools",)


@pytest.mark.parametrize("runtime", KINDS)
def test_files_that_cannot_be_kept(
    runtime: str, own_state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The graph keeps its own checkpoints and goes on; only going back to these is refused."""
    backend = LocalBackend(runtime=runtime, state_dir=own_state, checkpoint_quota="200k")
    model = Script(
        {
            "small": bash("echo 1 > a; cat a"),
            "big": bash("head -c 1000000 /dev/urandom > big; wc -c < big"),
            "still": bash("ls -A | tr '\\n' ' '"),
        }
    )
    with opened(backend) as tools:
        graph = agent(tools, SandboxCheckpointSaver(InMemorySaver()), model)
        graph.invoke(say("small"), of())
        small = graph.get_state(of()).config
        assert said(graph.invoke(say("big"), of())) == "1000000"
        big = graph.get_state(of())
        assert "no checkpoint of its files" in caplog.text
        assert files_of(big) is None
        assert "SANDBOX_CHECKPOINT_QUOTA" in big.metadata[NOT_KEPT_KEY]
        assert said(graph.invoke(say("still"), of())) == "a big "
        with client(backend) as sandbox:
            sandbox.execute("rm big")
        graph.invoke(say("hello"), of())  # Tried again, although no tool has run.
        assert files_of(graph.get_state(of()))
        with pytest.raises(FilesUnavailable, match="they were not kept"):
            graph.invoke(say("still"), big.config)
        assert said(graph.invoke(say("still"), small)) == "a "
