"""The tools of an agent of the OpenAI Agents SDK: a shell, or those of the sandbox as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import FunctionTool, RunContextWrapper, ToolOutputImage, ToolOutputText
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult
from agents.tool_context import ToolContext

from sandbox_sdk.integrations.arguments import our_tool
from sandbox_sdk.integrations.openai_agents.session import NOT_RUN
from sandbox_sdk.integrations.operations import Reply
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, ExecuteResult, ToolInfo

ThreadOf = str | Callable[[RunContextWrapper[Any]], str]
_Output = str | list[ToolOutputText | ToolOutputImage]


class SandboxShell:
    """Runs the commands of a ShellTool in the sandbox of a thread, one after the other, in one
    shell: working directory and variables carry over.

    `thread_id` may be a function of the run's context, so that one agent serves all conversations.
    A call that is run again, because a run was resumed, is not carried out twice.
    """

    def __init__(self, thread_id: ThreadOf, *, tools: SandboxTools | None = None) -> None:
        self._thread_id = thread_id
        self._tools = tools or SandboxTools()

    def __repr__(self) -> str:
        return f"<SandboxShell {self._tools!r}>"

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        thread_id = _thread(self._thread_id, request.ctx_wrapper)
        call, outputs = request.data, []
        for number, command in enumerate(call.action.commands):
            given: dict[str, Any] = {"command": command}
            if call.action.timeout_ms:
                given["timeout"] = min(call.action.timeout_ms / 1000, MAX_TIMEOUT_S)
            reply = await self._tools.adispatch(
                "bash", given, thread_id=thread_id, tool_call_id=f"{call.call_id}:{number}"
            )
            outputs.append(_output(command, reply))
        return ShellResult(outputs, max_output_length=call.action.max_output_length)


def _output(command: str, reply: Reply) -> ShellCommandOutput:
    result = reply.artifact
    if not isinstance(result, ExecuteResult):
        refused = ShellCallOutcome(type="exit", exit_code=NOT_RUN)
        return ShellCommandOutput(stderr=reply.text, outcome=refused, command=command)
    outcome = ShellCallOutcome(type="exit", exit_code=result.exit_code)
    if result.timed_out:
        outcome = ShellCallOutcome(type="timeout")
    return ShellCommandOutput(stdout=reply.text, outcome=outcome, command=command)


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


def _thread(thread_id: ThreadOf, context: RunContextWrapper[Any]) -> str:
    return thread_id if isinstance(thread_id, str) else thread_id(context)
