"""Handlers of the registry operations: what is declared, and calls of tools."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from pydantic_core import from_json

from sandbox_sdk.integrations.arguments import ALL as OUR_TOOLS
from sandbox_sdk.integrations.arguments import parsed
from sandbox_sdk.integrations.operations import Operations, Reply
from sandbox_sdk.integrations.presenting import Presenting, shorten
from sandbox_sdk.integrations.tools import AsyncSandboxTools
from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import FileMissing, InvalidPath, InvalidRequest
from sandbox_sdk.protocol.operations import Handlers
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.units import seconds
from sandbox_server.registry.agents import Tool
from sandbox_server.registry.entries import Registry, near
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.registry.parameters import check_arguments
from sandbox_server.registry.templates import code_of, rendered
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.agents import registry_list
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions

_Run = Callable[[Operations], Awaitable[Reply]]


class _Given(TypedDict):
    idempotency_key: str | None
    timeout: float | None


class ToolHandlers:
    def __init__(
        self,
        access: SessionAccess,
        registry: LiveRegistry,
        sandboxes_of: Callable[[str], Sandboxes],
    ) -> None:
        """sandboxes_of: all that a tool does goes through these, and so past the policy."""
        self._access = access
        self._registry = registry
        self._sandboxes_of = sandboxes_of
        self.handlers: Handlers = {op.REGISTRY: self._list, op.CALL_TOOL: self._call}

    async def _list(self, tenant: str, _request: models.EmptyRequest) -> models.RegistryList:
        return registry_list(self._registry.current(), tenant)

    async def _call(self, tenant: str, request: models.CallToolRequest) -> models.ToolAnswer:
        before = await self._access.expected(tenant, request)
        tool = find_tool(request.tool, before, self._registry.current(), tenant)
        sandboxes = self._sandboxes_of(tenant)
        if tool is None:
            return await self._call_ours(tenant, sandboxes, request)
        try:
            run = _run_of(tool, check_arguments(tool, request.arguments), request.idempotency_key)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from None
        tools = AsyncSandboxTools(backend=sandboxes, presenting=Presenting(max_chars=tool.limit))
        async with tools.operations(await self._thread_of(tenant, request)) as operations:
            return await _presented(tool, await run(operations), operations)

    async def _call_ours(
        self, tenant: str, sandboxes: Sandboxes, request: models.CallToolRequest
    ) -> models.ToolAnswer:
        try:
            call = parsed(request.tool, request.arguments)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from None
        thread_id = await self._thread_of(tenant, request)
        async with AsyncSandboxTools(backend=sandboxes).operations(thread_id) as operations:
            return _answer(await operations.call(call, request.idempotency_key))

    async def _thread_of(self, tenant: str, target: models.Target) -> str:
        """The thread of a target. Raises SessionNotFound, SessionLost for a session_id that has
        ended."""
        if target.thread_id is not None:
            return target.thread_id
        session, _ = await self._access.open(tenant, target)
        return session.record.thread_id


def find_tool(
    name: str, session: LiveSession | SessionOptions, registry: Registry, tenant: str
) -> Tool | None:
    """A declared tool by its name; None for one of ours. A session of an agent has those of its
    agent, as they were when it began. Raises InvalidRequest."""
    declared = registry.tools_of(tenant)
    names = [*OUR_TOOLS, *declared]
    if session.made_for is not None:
        declared = {tool.name: tool for tool in session.made_for.declared}
        names = list(session.made_for.tools)
    if name not in names:
        raise InvalidRequest(
            f"there is no tool {name!r}, only {', '.join(names) or 'none'}{near(name, names)}"
        )
    return declared.get(name)


def _run_of(tool: Tool, arguments: dict[str, Any], key: str | None) -> _Run:
    """What a declared tool does: it runs its command, or its code. Raises ValueError."""
    given: _Given = {"idempotency_key": key, "timeout": _timeout_s(tool)}
    if tool.code is not None:
        source = code_of(tool, arguments)
        return lambda operations: operations.code(source, tool.language, **given)
    command = rendered(tool, arguments)
    return lambda operations: operations.run(
        command.command, env=command.env, stdin=command.stdin, **given
    )


def _timeout_s(tool: Tool) -> float | None:
    return seconds(tool.timeout) if isinstance(tool.timeout, str) else tool.timeout


def _answer(reply: Reply, **more: Any) -> models.ToolAnswer:
    result = reply.artifact if isinstance(reply.artifact, models.ExecuteResult) else None
    told = {"text": reply.text, "failed": reply.failed, "result": result, "images": reply.images}
    return models.ToolAnswer(**{**told, **more})


async def _presented(tool: Tool, reply: Reply, operations: Operations) -> models.ToolAnswer:
    """The reply in the form that the tool declares, if its command or code has done its work."""
    result = reply.artifact
    assert isinstance(result, models.ExecuteResult | models.CodeResult)
    failed = result.error if isinstance(result, models.CodeResult) else result.exit_code != 0
    if failed or tool.output == "text":
        return _answer(reply)
    if tool.output == "json":
        return _json(tool, reply, result)
    return await _file(reply, result, operations)


def _json(
    tool: Tool, reply: Reply, result: models.ExecuteResult | models.CodeResult
) -> models.ToolAnswer:
    try:
        data = from_json(result.stdout)
    except ValueError as exc:
        text = f"{reply.text}\n[the tool printed no JSON: {exc}]"
        return _answer(reply, text=text, failed=True)
    text = json.dumps(data, ensure_ascii=False, indent=1)
    return _answer(reply, data=data, text=reply.text if shorten(text, tool.limit) else text)


async def _file(
    reply: Reply, result: models.ExecuteResult | models.CodeResult, operations: Operations
) -> models.ToolAnswer:
    path = (result.stdout.strip().splitlines() or [""])[-1]
    try:
        if not path:
            raise FileMissing("nothing")
        (entry, *_) = (await operations.sandbox.list_files(path, limit=1)).entries
    except (FileMissing, InvalidPath, ValueError):
        text = f"{reply.text}\n[the last line of what the tool printed is no file]"
        return _answer(reply, text=text, failed=True)
    return _answer(reply, file=entry, text=f"{entry.path} ({entry.size:,} bytes)")
