"""The tools of the sandbox as function tools of the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from sandbox_sdk.integrations.arguments import our_tool
from sandbox_sdk.integrations.openai_agents.shell import ThreadOf
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.protocol.models import ToolInfo

_Output = str | list[ToolOutputText | ToolOutputImage]


def sandbox_tools(
    thread_id: ThreadOf, *, tools: SandboxTools | None = None, agent: str | None = None
) -> list[FunctionTool]:
    """Bash and the file tools for `Agent(tools=…)`, and undo where the sandboxes have a history;
    with an agent of the server's registry, the tools of that one. Its prompt, for `instructions=`,
    is what `SandboxTools.begin()` gives."""
    shared = tools or SandboxTools()
    found = (
        [our_tool(name) for name in shared.usual] if agent is None else shared.agent_tools(agent)
    )
    return [_tool(shared, info, thread_id, agent) for info in found]


def _tool(
    tools: SandboxTools, info: ToolInfo, thread_id: ThreadOf, agent: str | None
) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> _Output:
        reply = await tools.adispatch(
            info.name,
            arguments,
            thread_id=_thread(thread_id, context),
            tool_call_id=context.tool_call_id,
            agent=agent,
        )
        images = [ToolOutputImage(image_url=image.url) for image in reply.images]
        return [ToolOutputText(text=reply.text), *images] if images else reply.text

    return FunctionTool(
        name=info.name,
        description=info.description,
        params_json_schema=info.parameters,
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


def _thread(thread_id: str | Callable[[Any], str], context: ToolContext[Any]) -> str:
    return thread_id if isinstance(thread_id, str) else thread_id(context)
