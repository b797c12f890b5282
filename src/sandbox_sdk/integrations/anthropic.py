"""Claude's own tools, bash and the text editor, in the sandbox of a thread; needs the extra
`anthropic`.

    client.beta.messages.tool_runner(tools=sandbox_tools("conv-42"), …).until_done()

Claude was trained on these tools: their descriptions and schemas are Anthropic's own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Generator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sandbox_sdk.errors import InvalidPath
from sandbox_sdk.extras import needs
from sandbox_sdk.integrations.arguments import RunCode, our_tool
from sandbox_sdk.integrations.operations import Reply
from sandbox_sdk.integrations.tools import CallIds, SandboxTools
from sandbox_sdk.protocol.models import WORKSPACE, ExecuteResult, ToolInfo, field_errors, told

with needs("anthropic"):
    from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, BetaBuiltinFunctionTool, ToolError
    from anthropic.types.beta import (
        BetaImageBlockParam,
        BetaTextBlockParam,
        BetaToolBash20250124Param,
        BetaToolParam,
        BetaToolTextEditor20250728Param,
    )

BASH: BetaToolBash20250124Param = {"type": "bash_20250124", "name": "bash"}
EDITOR: BetaToolTextEditor20250728Param = {
    "type": "text_editor_20250728",
    "name": "str_replace_based_edit_tool",
}
_Block = BetaTextBlockParam | BetaImageBlockParam
_ALL = 1_000_000
"""A limit of lines that no file shown has."""

# Runs in the box, where a lock makes concurrent edits wait.
_INSERT = f"""
import fcntl, json, os, sys
call = json.loads(sys.argv[1])
path = os.path.join("{WORKSPACE}", call["path"])
try:
    with open(path, "r+", encoding="utf-8", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines(keepends=True)
        if call["line"] > len(lines):
            sys.exit(f"Not edited: {{path}} has only {{len(lines)}} lines")
        if call["line"] and not lines[call["line"] - 1].endswith("\\n"):
            lines[call["line"] - 1] += "\\n"
        text = call["text"]
        if call["line"] < len(lines) and not text.endswith("\\n"):
            text += "\\n"
        lines.insert(call["line"], text)
        file.seek(0)
        file.write("".join(lines))
    print(f"Inserted after line {{call['line']}} of {{path}}")
except (OSError, ValueError) as error:
    sys.exit(f"Not edited: {{path}}: {{getattr(error, 'strerror', 0) or error}}")
"""


class View(BaseModel):
    command: Literal["view"]
    path: str
    view_range: tuple[int, int] = (1, -1)
    """The first line and the last; -1 is the end."""


class Create(BaseModel):
    command: Literal["create"]
    path: str
    file_text: str


class StrReplace(BaseModel):
    command: Literal["str_replace"]
    path: str
    old_str: str
    new_str: str = ""


class Insert(BaseModel):
    command: Literal["insert"]
    path: str
    insert_line: int = Field(ge=0)
    insert_text: str


Edit = Annotated[View | Create | StrReplace | Insert, Field(discriminator="command")]
_EDIT: TypeAdapter[View | Create | StrReplace | Insert] = TypeAdapter(Edit)

Steps = Generator[tuple[str, dict[str, Any]], Reply, Reply]
"""Yields calls of our tools, is sent their replies, and returns the reply for Claude."""


class _InSandbox:
    """What a tool needs to work in the sandbox of a thread."""

    def __init__(
        self,
        thread_id: str,
        *,
        tools: SandboxTools | None = None,
        agent: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """`timeout_s` is that of commands: Claude's bash has no argument for it. `agent`: of the
        server's registry, which the sandbox is made for."""
        self._thread_id = thread_id
        self._agent = agent
        self._tools = tools or SandboxTools()
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._thread_id}, {self._tools!r}>"

    def _run(self, steps: Steps) -> str:
        name, given = next(steps)
        while True:
            reply = self._tools.dispatch(name, given, **self._ids())
            try:
                name, given = steps.send(reply)
            except StopIteration as done:
                return _said(done.value)

    async def _arun(self, steps: Steps) -> str:
        name, given = next(steps)
        while True:
            reply = await self._tools.adispatch(name, given, **self._ids())
            try:
                name, given = steps.send(reply)
            except StopIteration as done:
                return _said(done.value)

    def _ids(self) -> CallIds:
        return CallIds(thread_id=self._thread_id, agent=self._agent)


class SandboxBash(_InSandbox, BetaBuiltinFunctionTool):
    """Claude's bash in the sandbox of a thread: files, directory and variables carry over."""

    def to_dict(self) -> BetaToolBash20250124Param:
        return BASH

    def call(self, input: object) -> str:
        return self._run(_bash(input, self._timeout_s))


class AsyncSandboxBash(_InSandbox, BetaAsyncBuiltinFunctionTool):
    def to_dict(self) -> BetaToolBash20250124Param:
        return BASH

    async def call(self, input: object) -> str:
        return await self._arun(_bash(input, self._timeout_s))


class SandboxEditor(_InSandbox, BetaBuiltinFunctionTool):
    """Claude's text editor for the files of a thread's sandbox."""

    def to_dict(self) -> BetaToolTextEditor20250728Param:
        return EDITOR

    def call(self, input: object) -> str:
        return self._run(_edit(input))


class AsyncSandboxEditor(_InSandbox, BetaAsyncBuiltinFunctionTool):
    def to_dict(self) -> BetaToolTextEditor20250728Param:
        return EDITOR

    async def call(self, input: object) -> str:
        return await self._arun(_edit(input))


class SandboxTool(_InSandbox, BetaBuiltinFunctionTool):
    """A tool of an agent, in the sandbox of a thread. Images are blocks of its result."""

    def __init__(self, info: ToolInfo, thread_id: str, **more: Any) -> None:
        super().__init__(thread_id, **more)
        self._info = info

    def to_dict(self) -> BetaToolParam:
        return _param(self._info)

    def call(self, input: object) -> str | list[_Block]:
        return _shown(self._tools.dispatch(self._info.name, _given(input), **self._ids()))


class AsyncSandboxTool(_InSandbox, BetaAsyncBuiltinFunctionTool):
    def __init__(self, info: ToolInfo, thread_id: str, **more: Any) -> None:
        super().__init__(thread_id, **more)
        self._info = info

    def to_dict(self) -> BetaToolParam:
        return _param(self._info)

    async def call(self, input: object) -> str | list[_Block]:
        given = _given(input)
        return _shown(await self._tools.adispatch(self._info.name, given, **self._ids()))


class SandboxCode(SandboxTool):
    """Code on a Jupyter kernel, for sandboxes that have one: variables stay, images are shown."""

    def __init__(self, thread_id: str, **more: Any) -> None:
        super().__init__(our_tool(RunCode.name), thread_id, **more)


class AsyncSandboxCode(AsyncSandboxTool):
    def __init__(self, thread_id: str, **more: Any) -> None:
        super().__init__(our_tool(RunCode.name), thread_id, **more)


def sandbox_tools(
    thread_id: str, *, tools: SandboxTools | None = None, agent: str | None = None
) -> list[SandboxBash | SandboxEditor | SandboxTool]:
    """Bash and the text editor for `tools=` of `Anthropic().beta.messages.tool_runner`; with an
    agent of the server's registry, the tools of that one."""
    tools = tools or SandboxTools()
    if agent is None:
        return [SandboxBash(thread_id, tools=tools), SandboxEditor(thread_id, tools=tools)]
    found = tools.agent_tools(agent)
    return [SandboxTool(info, thread_id, tools=tools, agent=agent) for info in found]


def async_sandbox_tools(
    thread_id: str, *, tools: SandboxTools | None = None, agent: str | None = None
) -> list[AsyncSandboxBash | AsyncSandboxEditor | AsyncSandboxTool]:
    """The same for `AsyncAnthropic()`."""
    tools = tools or SandboxTools()
    if agent is None:
        return [
            AsyncSandboxBash(thread_id, tools=tools),
            AsyncSandboxEditor(thread_id, tools=tools),
        ]
    found = tools.agent_tools(agent)
    return [AsyncSandboxTool(info, thread_id, tools=tools, agent=agent) for info in found]


def _param(info: ToolInfo) -> BetaToolParam:
    return {"name": info.name, "description": info.description, "input_schema": info.parameters}


def _bash(given: object, timeout_s: float) -> Steps:
    assert isinstance(given, Mapping)
    wanted = {name: given[name] for name in ("command", "restart") if name in given}
    return (yield "bash", {**wanted, "timeout": timeout_s})


def _edit(given: object) -> Steps:
    try:
        edit = _EDIT.validate_python(given)
    except ValidationError as error:
        raise ToolError(told(field_errors(error.errors(include_url=False)))) from None
    match edit:
        case View(path=path, view_range=(first, last)):
            lines = {"offset": first, "limit": _ALL if last == -1 else last - first + 1}
            reply = yield "read_file", {"path": path, **lines}
            if isinstance(reply.error, InvalidPath):  # A folder.
                reply = yield "list_files", {"path": path}
            return reply
        case Create(path=path, file_text=text):
            return (yield "write_file", {"path": path, "content": text})
        case StrReplace(path=path, old_str=old, new_str=new):
            return (yield "edit_file", {"path": path, "old": old, "new": new})
        case Insert(path=path, insert_line=line, insert_text=text):
            call = json.dumps({"path": path, "line": line, "text": text})
            command = f"exec python3 -c {shlex.quote(_INSERT)} {shlex.quote(call)}"
            return _inserted((yield "bash", {"command": command}))


def _inserted(reply: Reply) -> Reply:
    result = reply.artifact
    if not isinstance(result, ExecuteResult):
        return reply
    return Reply(result.output.strip(), artifact=result, failed=result.exit_code != 0)


def _given(input: object) -> Mapping[str, Any]:
    assert isinstance(input, Mapping)
    return input


def _shown(reply: Reply) -> str | list[_Block]:
    if not reply.images:
        return _said(reply)
    shown: list[_Block] = [{"type": "text", "text": _said(reply)}]
    for image in reply.images:
        source: Any = {"type": "base64", "media_type": image.mime, "data": image.data}
        shown.append({"type": "image", "source": source})
    return shown


def _said(reply: Reply) -> str:
    if reply.failed:
        raise ToolError(reply.text)
    return reply.text
