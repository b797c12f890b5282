"""LangChain and LangGraph: the sandbox of a thread as tools of its agent.

    from langchain.agents import create_agent
    from sandbox_sdk.integrations.langchain import SandboxMiddleware

    agent = create_agent(model, middleware=[SandboxMiddleware()], checkpointer=checkpointer)
    agent.invoke({"messages": [...]}, {"configurable": {"thread_id": "conv-42"}})

The thread is that of the run, so every conversation has its own sandbox. A tool call that LangGraph
replays is not carried out twice. Output is streamed while a command runs, in the modes "custom" and
"tools".

Needs `pip install agent-sandbox[langchain]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sandbox_sdk.extras import needs
from sandbox_sdk.integrations.arguments import USUAL, Bash, RunCode, our_tool
from sandbox_sdk.integrations.operations import Reply
from sandbox_sdk.integrations.tools import CallIds, SandboxTools
from sandbox_sdk.protocol.models import ToolInfo

with needs("langchain"):
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain_core.messages import SystemMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import BaseTool, StructuredTool
    from langgraph.config import get_config
    from langgraph.prebuilt import ToolRuntime
    from langgraph.runtime import Runtime

    from sandbox_sdk.integrations.langgraph_checkpoints import follow_graph

__all__ = [
    "SandboxMiddleware",
    "bash_tool",
    "code_tool",
    "file_tools",
    "sandbox_tools",
    "thread_of",
]

_Content = tuple[str | list[str | dict[str, Any]] | ToolMessage, Any]


def thread_of(config: RunnableConfig) -> str:
    """The thread of a run. Raises ValueError where it has none."""
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        raise ValueError(
            "the config of this run has no thread_id, which names its sandbox: pass"
            ' {"configurable": {"thread_id": …}}'
        )
    return str(thread_id)


def bash_tool(tools: SandboxTools | None = None) -> BaseTool:
    """The bash tool. Its artifact is the ExecuteResult; out of a checkpoint, a dict of its fields.

    While a command runs, its output comes as `{"sandbox": {"tool_call_id": …, "output": …}}` in
    the stream mode "custom", and as deltas of the tool in the mode "tools".
    """
    return _tool(tools or SandboxTools(), our_tool(Bash.name))


def file_tools(
    tools: SandboxTools | None = None, *, names: Sequence[str] = USUAL[1:]
) -> list[BaseTool]:
    """Tools to read, write, edit and list the files of the sandbox."""
    shared = tools or SandboxTools()
    return [_tool(shared, our_tool(name)) for name in names]


def code_tool(tools: SandboxTools | None = None) -> BaseTool:
    """The tool that runs code on a Jupyter kernel, for sandboxes that have one. Its artifact is the
    CodeResult, and images are content of the message."""
    return _tool(tools or SandboxTools(), our_tool(RunCode.name))


def sandbox_tools(tools: SandboxTools | None = None, *, agent: str | None = None) -> list[BaseTool]:
    """The bash tool and the file tools, on one connection, and undo where the sandboxes have a
    history; with an agent of the server's registry, the tools of that one. Sandboxes are made for
    it then."""
    shared = tools or SandboxTools()
    if agent is None:
        return [_tool(shared, our_tool(name)) for name in shared.usual]
    return [_tool(shared, info, agent) for info in shared.agent_tools(agent)]


class SandboxMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives an agent its tools and tells its model about the sandbox.

    The sandbox is kept for the next turn of the conversation, and ends when nobody has used it for
    long; with `cleanup` it ends with every run of the agent.

    agent: a name out of the server's registry, whose tools and prompt are given instead of ours.
    """

    def __init__(
        self, tools: SandboxTools | None = None, *, agent: str | None = None, cleanup: bool = False
    ) -> None:
        self._sandboxes = tools or SandboxTools()
        self._agent = agent
        self._cleanup = cleanup
        self._prompt: str | None = None
        self.tools = sandbox_tools(self._sandboxes, agent=agent)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        prompt = self._prompt
        if prompt is None:
            thread_id = thread_of(get_config())
            prompt = self._remembered(self._sandboxes.system_prompt(thread_id, agent=self._agent))
        return handler(_with_prompt(request, prompt))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        prompt = self._prompt
        if prompt is None:
            thread_id = thread_of(get_config())
            prompt = self._remembered(
                await self._sandboxes.asystem_prompt(thread_id, agent=self._agent)
            )
        return await handler(_with_prompt(request, prompt))

    def _remembered(self, prompt: str) -> str:
        """That of an agent is asked for again: threads keep the one they began with."""
        if self._agent is None:
            self._prompt = prompt
        return prompt

    def after_agent(self, state: Any, runtime: Runtime[Any]) -> None:  # noqa: ARG002
        if self._cleanup:
            self._sandboxes.cleanup(thread_of(get_config()))

    async def aafter_agent(self, state: Any, runtime: Runtime[Any]) -> None:  # noqa: ARG002
        if self._cleanup:
            await self._sandboxes.acleanup(thread_of(get_config()))


def _tool(tools: SandboxTools, info: ToolInfo, agent: str | None = None) -> BaseTool:
    """One tool. Its schema is given as a dict, not as a model: LangChain would check the arguments
    with a model, where SandboxTools tells the LLM in words what is wrong, and would take what
    LangGraph injects for arguments."""
    follow_graph(tools)
    name = info.name

    def run(config: RunnableConfig, runtime: ToolRuntime | None = None, **given: Any) -> _Content:
        ids = _ids(config, runtime, agent)
        if name != Bash.name:
            reply = tools.dispatch(name, given, **ids)
        else:
            for piece in tools.stream(given, **ids):
                reply = _shown(runtime, piece)
        return _content(name, reply, ids["tool_call_id"])

    async def arun(
        config: RunnableConfig, runtime: ToolRuntime | None = None, **given: Any
    ) -> _Content:
        ids = _ids(config, runtime, agent)
        if name != Bash.name:
            reply = await tools.adispatch(name, given, **ids)
        else:
            async for piece in tools.astream(given, **ids):
                reply = _shown(runtime, piece)
        return _content(name, reply, ids["tool_call_id"])

    return StructuredTool(
        name=name,
        description=info.description,
        args_schema=info.parameters,
        func=run,
        coroutine=arun,
        response_format="content_and_artifact",
    )


def _ids(config: RunnableConfig, runtime: ToolRuntime | None, agent: str | None) -> CallIds:
    call_id = runtime.tool_call_id if runtime else None
    return CallIds(thread_id=thread_of(config), tool_call_id=call_id, agent=agent)


def _shown(runtime: ToolRuntime | None, piece: str | Reply) -> Reply:
    if isinstance(piece, Reply):
        return piece
    if runtime is not None:
        runtime.stream_writer({"sandbox": {"tool_call_id": runtime.tool_call_id, "output": piece}})
        runtime.emit_output_delta(piece)
    return Reply(piece)


def _content(name: str, reply: Reply, tool_call_id: str | None) -> _Content:
    if not reply.failed or tool_call_id is None:
        return (_blocks(reply) if reply.images else reply.text), reply.artifact
    message = ToolMessage(
        content=reply.text,
        artifact=reply.artifact,
        name=name,
        tool_call_id=tool_call_id,
        status="error",
    )
    return message, reply.artifact


def _blocks(reply: Reply) -> list[str | dict[str, Any]]:
    """Text and images, as LangChain has them for any model."""
    shown: list[str | dict[str, Any]] = [
        {"type": "image", "base64": image.data, "mime_type": image.mime} for image in reply.images
    ]
    return [{"type": "text", "text": reply.text}, *shown]


def _with_prompt(request: ModelRequest[Any], prompt: str) -> ModelRequest[Any]:
    before = request.system_message
    if before is None:
        return request.override(system_message=SystemMessage(content=prompt))
    blocks: list[Any] = [*before.content_blocks, {"type": "text", "text": f"\n\n{prompt}"}]
    return request.override(system_message=SystemMessage(content=blocks))
