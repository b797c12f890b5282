"""deepagents: the sandbox of the run's thread as the backend of a deep agent.

    from deepagents import create_deep_agent
    from sandbox_sdk.integrations.deepagents import SandboxBackend

    agent = create_deep_agent(model, backend=SandboxBackend(), checkpointer=checkpointer)
    agent.invoke({"messages": [...]}, {"configurable": {"thread_id": "conv-42"}})

One backend serves all conversations: whose sandbox is meant is decided at every call.

Needs `pip install agent-sandbox[deepagents]`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from posixpath import basename, isabs
from typing import Any

from sandbox_sdk.errors import FileMissing, Forbidden, InvalidPath, SandboxError
from sandbox_sdk.extras import needs
from sandbox_sdk.integrations.operations import Operations, Reply
from sandbox_sdk.integrations.presenting import explain
from sandbox_sdk.integrations.tools import SandboxTools
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, ExecuteResult

with needs("deepagents"):
    from deepagents.backends.protocol import (
        ExecuteOffloadResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
    from langgraph.config import get_config

    from sandbox_sdk.integrations.langchain import thread_of
    from sandbox_sdk.integrations.langgraph_checkpoints import follow_graph

__all__ = ["SandboxBackend"]


class SandboxBackend(BaseSandbox):
    """The sandbox of a thread: of the one that is given, or of the run in which it is used.

    What the model's own commands print is shown to it as our bash tool would show it, with the
    whole of a long output left in the box, and a call that is replayed is not carried out twice.
    """

    def __init__(self, tools: SandboxTools | None = None, *, thread_id: str | None = None) -> None:
        self._tools = tools or SandboxTools()
        self._thread_id = thread_id
        follow_graph(self._tools)

    def __repr__(self) -> str:
        return f"<SandboxBackend of {self._thread_id or 'the thread of the run'}, {self._tools!r}>"

    @property
    def id(self) -> str:
        return self._thread()

    def _thread(self) -> str:
        return self._thread_id or thread_of(get_config())

    # Commands of the framework, whose output it parses itself

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        try:
            return _raw(self._tools.use(self._thread(), _running(command, timeout)))
        except SandboxError as error:
            return ExecuteResponse(explain(error), exit_code=1)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109
    ) -> ExecuteResponse:
        try:
            return _raw(await self._tools.ause(self._thread(), _running(command, timeout)))
        except SandboxError as error:
            return ExecuteResponse(explain(error), exit_code=1)

    # Commands of the model; the end of capture_path is the id of its call

    def execute_with_offload(
        self, command: str, capture_path: str, *, timeout: int | None = None, **_limits: Any
    ) -> ExecuteOffloadResult:
        given = {"command": command, "timeout": _seconds(timeout)}
        call_id = basename(capture_path)
        return _shown(
            self._tools.dispatch("bash", given, thread_id=self._thread(), tool_call_id=call_id)
        )

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        timeout: int | None = None,  # noqa: ASYNC109
        **_limits: Any,
    ) -> ExecuteOffloadResult:
        given = {"command": command, "timeout": _seconds(timeout)}
        call_id, thread_id = basename(capture_path), self._thread()
        return _shown(
            await self._tools.adispatch("bash", given, thread_id=thread_id, tool_call_id=call_id)
        )

    # Files

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        async def all_of(tools: Operations) -> list[FileUploadResponse]:
            return [await _upload(tools, path, data) for path, data in files]

        return self._tools.use(self._thread(), all_of)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        async def all_of(tools: Operations) -> list[FileDownloadResponse]:
            return [await _download(tools, path) for path in paths]

        return self._tools.use(self._thread(), all_of, changes=False)


def _seconds(timeout: int | None) -> float | None:
    """deepagents says 0 for no timeout."""
    return timeout or MAX_TIMEOUT_S if timeout is not None else None


def _running(command: str, timeout: int | None) -> Callable[[Operations], Awaitable[ExecuteResult]]:
    options = CommandOptions()
    if (seconds := _seconds(timeout)) is not None:
        options["timeout"] = seconds

    async def run(tools: Operations) -> ExecuteResult:
        return await tools.quietly(command, **options)

    return run


def _raw(result: ExecuteResult) -> ExecuteResponse:
    return ExecuteResponse(result.output, result.exit_code, truncated=result.truncated)


def _shown(reply: Reply) -> ExecuteOffloadResult:
    """deepagents adds the exit code in words of its own."""
    result = reply.artifact
    if not isinstance(result, ExecuteResult):
        return ExecuteOffloadResult(False, ExecuteResponse(reply.text, exit_code=1))
    text = reply.text.removesuffix(f"\n[exit code {result.exit_code}]")
    return ExecuteOffloadResult(False, ExecuteResponse(text, result.exit_code))


async def _upload(tools: Operations, path: str, data: bytes) -> FileUploadResponse:
    try:
        _check_absolute(path)
        await tools.sandbox.upload_bytes(data, path)
    except SandboxError as error:
        return FileUploadResponse(path, error=_named(error))
    return FileUploadResponse(path)


async def _download(tools: Operations, path: str) -> FileDownloadResponse:
    try:
        _check_absolute(path)
        content = await tools.content(path, max_bytes=sys.maxsize)
    except SandboxError as error:
        return FileDownloadResponse(path, error=_named(error))
    return FileDownloadResponse(path, content=content)


def _check_absolute(path: str) -> None:
    if not isabs(path):
        raise InvalidPath(f"{path} is not an absolute path; begin it with /")


def _named(error: SandboxError) -> str:
    """An error in the words deepagents knows, where it has one."""
    named: list[tuple[type[SandboxError], str]] = [
        (FileMissing, "file_not_found"),
        (Forbidden, "permission_denied"),
        (InvalidPath, "invalid_path"),
    ]
    return next((name for kind, name in named if isinstance(error, kind)), explain(error))
