"""A LangGraph agent with a sandbox for every conversation.

It runs without a model: a script plays the part. Put a chat model in its place, and the rest stays.

    pip install 'agent-sandbox[server,langchain]'
    python langgraph_agent.py
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from sandbox_sdk.integrations.langchain import sandbox_tools, thread_of
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.testing.langchain import ScriptedModel


def build(
    model: BaseChatModel, tools: SandboxTools, checkpointer: Any = None
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph: the model is asked, its calls are carried out, and again, until it makes none."""
    available = sandbox_tools(tools)
    thinking = model.bind_tools(available)

    async def think(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        about = SystemMessage(await tools.asystem_prompt(thread_of(config)))
        return {"messages": [await thinking.ainvoke([about, *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", think)
    graph.add_node("tools", ToolNode(available))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


SCRIPT = [
    [
        {
            "name": "write_file",
            "args": {"path": "hello.py", "content": "import sys\nprint('hello', sys.argv[1])\n"},
        },
    ],
    [
        {"name": "edit_file", "args": {"path": "hello.py", "old": "hello", "new": "good day"}},
        {"name": "bash", "args": {"command": "python3 hello.py world"}},
    ],
]


async def converse(tools: SandboxTools, thread_id: str) -> list[str]:
    """Have the conversation of the script. What the tools said, in order."""
    agent = build(ScriptedModel(turns=SCRIPT), tools, InMemorySaver())
    state: dict[str, Any] = {"messages": []}
    for text in ("write a greeting", "make it formal and try it"):
        state = await agent.ainvoke(
            {"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread_id}}
        )
    return [message.text for message in state["messages"] if message.type == "tool"]


if __name__ == "__main__":
    import asyncio

    with SandboxTools() as shared:
        for said in asyncio.run(converse(shared, "example")):
            print(said)
        shared.cleanup("example")
