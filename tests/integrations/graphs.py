"""Graphs with our tools whose model is a script, for tests of their checkpoints."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from sandbox_sdk import LocalBackend, SandboxClient
from sandbox_sdk.integrations.graph_files import CHECKPOINT_KEY
from sandbox_sdk.integrations.langchain import sandbox_tools
from sandbox_sdk.integrations.tools import SandboxTools
from tests.contract.conftest import RUNTIMES

KINDS = [name for name in RUNTIMES if name != "gvisor"]
"""gVisor is docker to whoever calls a server."""

Savers = Callable[[], AbstractContextManager[BaseCheckpointSaver[Any]]]


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, state_dir: Path) -> LocalBackend:
    return LocalBackend(runtime=request.param, state_dir=state_dir)


@contextlib.contextmanager
def opened(backend: LocalBackend) -> Iterator[SandboxTools]:
    """Tools whose sandboxes are ended afterwards."""
    with SandboxTools(backend=backend) as made:
        try:
            yield made
        finally:
            for thread_id in ("t", "copy"):
                made.cleanup(thread_id)


@pytest.fixture
def tools(backend: LocalBackend) -> Iterator[SandboxTools]:
    with opened(backend) as made:
        yield made
        for thread_id in ("t", "copy"):
            with client(backend, thread_id) as sandbox:
                for each in sandbox.checkpoints():
                    sandbox.delete_checkpoint(each)


@pytest.fixture
def own_state(state_dir: Path, request: pytest.FixtureRequest) -> Path:
    """For a server with other settings than the one that the other tests share."""
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:16]
    path: Path = state_dir / name
    path.mkdir(mode=0o711)
    return path


@pytest.fixture(params=["memory", "sqlite"])
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Savers:
    """Opens the saver; each time the same one, as a program does that is run again."""
    memory = InMemorySaver()
    if request.param == "memory":
        return lambda: contextlib.nullcontext(memory)
    return lambda: SqliteSaver.from_conn_string(str(tmp_path / "graph.db"))


def of(thread_id: str = "t") -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


Call = dict[str, Any]


def bash(command: str) -> Call:
    return {"name": "bash", "args": {"command": command}}


def asking(*calls: Call, after: int) -> AIMessage:
    made = [
        {**each, "id": f"call_{after}_{n}", "type": "tool_call"} for n, each in enumerate(calls)
    ]
    return AIMessage("", tool_calls=made)


class Script(dict[str, Call]):
    """A model: which call it makes when it is told this; otherwise it is done."""

    def __call__(self, state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        if not isinstance(last, HumanMessage) or last.text not in self:
            return {"messages": [AIMessage("done")]}
        return {"messages": [asking(self[last.text], after=len(state["messages"]))]}


class Steps:
    """A model that makes these calls one after the other, each list of them at once."""

    def __init__(self, *steps: list[str]) -> None:
        self.steps = steps

    def __call__(self, state: MessagesState) -> dict[str, Any]:
        done = sum(isinstance(m, AIMessage) for m in state["messages"])
        if done >= len(self.steps):
            return {"messages": [AIMessage("done")]}
        calls = [bash(command) for command in self.steps[done]]
        return {"messages": [asking(*calls, after=len(state["messages"]))]}


def agent(tools: SandboxTools, saver: Any, model: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode(sandbox_tools(tools), handle_tool_errors=False))
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__"
    )
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def say(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def said(state: dict[str, Any]) -> str:
    """The output of the last tool."""
    replies = [m for m in state["messages"] if isinstance(m, ToolMessage)]
    return replies[-1].text.removesuffix("\n[exit code 0]")


def files_of(snapshot: Any) -> str | None:
    found: str | None = snapshot.metadata.get(CHECKPOINT_KEY)
    return found


MODEL = Script(
    {
        "write one": bash("echo one > a; cat a"),
        "write two": bash("echo two >> a; cat a"),
        "read": bash("cat a"),
        "list": bash("ls -A | tr '\\n' ' '"),
        "way": bash("cat a; echo $WAY"),
        "left": bash("echo left >> a; export WAY=left; cat a"),
        "middle": bash("echo middle >> a; export WAY=middle; cat a"),
        "right": bash("echo right >> a; export WAY=right; cat a"),
        "other": bash("echo other >> a; cat a"),
        "tidy": bash("rm given.csv; echo x > b"),
        "look": {"name": "read_file", "args": {"path": "a"}},
    }
)


@contextlib.contextmanager
def client(backend: LocalBackend, thread_id: str = "t") -> Iterator[SandboxClient]:
    with SandboxClient(thread_id, backend=backend) as sandbox:
        yield sandbox
