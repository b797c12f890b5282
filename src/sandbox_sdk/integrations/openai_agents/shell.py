"""SandboxShell: what a ShellTool of the OpenAI Agents SDK runs its commands with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import RunContextWrapper
from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult

from sandbox_sdk.integrations.openai_agents.session import NOT_RUN
from sandbox_sdk.integrations.operations import Reply
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, ExecuteResult

ThreadOf = str | Callable[[RunContextWrapper[Any]], str]


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
        thread_id = self._thread_id
        if not isinstance(thread_id, str):
            thread_id = thread_id(request.ctx_wrapper)
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
