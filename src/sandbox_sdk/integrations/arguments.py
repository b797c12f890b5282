"""The tools as a model sees them: names, descriptions and arguments."""

from __future__ import annotations

import inspect
import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sandbox_sdk.protocol.models import (
    MAX_COMMAND,
    MAX_TIMEOUT_S,
    WORKSPACE,
    Language,
    ToolInfo,
    field_errors,
    told,
)

PATH = f"A path in the sandbox, relative to {WORKSPACE}."


class Arguments(BaseModel):
    """The arguments of one tool; its docstring is the tool's description."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    @classmethod
    def description(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        schema = _plain(cls.model_json_schema())
        schema.pop("description", None)
        assert isinstance(schema, dict)
        return schema


class Bash(Arguments):
    """Run a bash command in your sandbox and see its output and exit code.

    Commands start in /workspace and run without root, usually without a network; where one fails
    for want of something, a hint says what to do instead. Working directory, variables, functions
    and files carry over to the next command. Commands cannot ask questions: their input is empty.
    Start servers and long work with `command > log.txt 2>&1 &`.
    """

    name = "bash"

    command: str | None = Field(
        None, min_length=1, max_length=MAX_COMMAND, description="Bash source."
    )
    timeout: float | None = Field(
        None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description=f"Seconds after which it is ended: 30 unless told, at most {MAX_TIMEOUT_S:g}.",
    )
    restart: bool = Field(False, description="Begin with a new, empty sandbox. All files are lost.")

    @model_validator(mode="after")
    def _something_to_do(self) -> Bash:
        if self.command is None and not self.restart:
            raise ValueError("give a command, or restart")
        return self


class RunCode(Arguments):
    """Run code in your sandbox and see its output, the value of its last line, and its images.

    Variables and imports stay for the next call, as in a notebook: load data once. Charts of
    matplotlib and tables of pandas are shown. It runs in /workspace, beside the files of the other
    tools. There is no input. Not every sandbox has a kernel for every language; python is usual.
    """

    name = "run_code"

    code: str = Field(min_length=1, max_length=MAX_COMMAND, description="The source.")
    language: Language = Field("python", description="python, javascript, typescript, r, bash.")
    timeout: float | None = Field(
        None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description=f"Seconds after which it is ended: 30 unless told, at most {MAX_TIMEOUT_S:g}.",
    )


class ReadFile(Arguments):
    """Read a text file of your sandbox, with line numbers."""

    name = "read_file"

    path: str = Field(description=PATH)
    offset: int = Field(1, ge=1, description="The first line to show.")
    limit: int = Field(2000, ge=1, description="How many lines to show.")


class WriteFile(Arguments):
    """Write a text file in your sandbox. It is made, with its folders, or replaced."""

    name = "write_file"

    path: str = Field(description=PATH)
    content: str = Field(description="The whole text of the file.")


class EditFile(Arguments):
    """Replace a text in a file of your sandbox."""

    name = "edit_file"

    path: str = Field(description=PATH)
    old: str = Field(
        min_length=1, description="The text to replace, exactly as it is, without line numbers."
    )
    new: str = Field(description="The text to put there.")
    replace_all: bool = Field(
        False, description="Replace every occurrence; else there must be exactly one."
    )


class ListFiles(Arguments):
    """List a folder of your sandbox."""

    name = "list_files"

    path: str = Field(WORKSPACE, description=PATH)
    recursive: bool = Field(False, description="Also what is in folders below.")


class UploadFile(Arguments):
    """Store a file of any kind in your sandbox, its bytes given in base64."""

    name = "upload_file"

    path: str = Field(description=PATH)
    data_base64: str = Field(description="The bytes of the file, in base64.")

    @field_validator("data_base64")
    @classmethod
    def _decodable(cls, value: str) -> str:
        b64decode(value, validate=True)
        return value


class DownloadFile(Arguments):
    """Fetch a file of any kind from your sandbox, its bytes in base64."""

    name = "download_file"

    path: str = Field(description=PATH)


class Undo(Arguments):
    """Take back what you did last in your sandbox: all files, and variables and working directory
    of the shell, are as they were before it. What runs ends. An undo can be undone."""

    name = "undo"

    steps: int = Field(
        1, ge=1, le=250, description="How many commands and file changes to take back."
    )


ALL: dict[str, type[Arguments]] = {
    kind.name: kind
    for kind in (
        Bash,
        RunCode,
        ReadFile,
        WriteFile,
        EditFile,
        ListFiles,
        UploadFile,
        DownloadFile,
        Undo,
    )
}

USUAL = ("bash", "read_file", "write_file", "edit_file", "list_files")
"""The default tools of an agent. Files in base64 are more for programs than for models, and
run_code is for sandboxes that have a kernel, undo for those with a history."""

READING = frozenset({ReadFile.name, ListFiles.name, DownloadFile.name})
"""The tools that leave a sandbox as it is."""

Given = str | Mapping[str, Any]
"""The arguments of a call: as an object, or as JSON the way a model writes it."""


def our_tool(name: str) -> ToolInfo:
    """One of our tools."""
    kind = ALL[name]
    return ToolInfo(name=name, description=kind.description(), parameters=kind.parameters())


def schemas(names: Sequence[str] = USUAL) -> list[dict[str, Any]]:
    """The tools for `tools=` of an OpenAI-style chat completion."""
    return schemas_of(our_tool(name) for name in names)


def schemas_of(tools: Iterable[ToolInfo]) -> list[dict[str, Any]]:
    """The same for any tools."""
    return [{"type": "function", "function": tool.model_dump()} for tool in tools]


def parsed(name: str, arguments: Given) -> Arguments:
    """The arguments of a call of one of our tools, checked. Raises ValueError with what to tell the
    model."""
    try:
        return ALL[name].model_validate(_decoded(arguments))
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False), known=ALL[name].model_fields)
        raise ValueError(f"{name}: {told(wrong)}") from None


def as_object(name: str, arguments: Given) -> dict[str, Any]:
    """The arguments of a call of a declared tool, which its server checks. Raises ValueError."""
    given = _decoded(arguments)
    if not isinstance(given, dict):
        raise ValueError(f"{name}: send a JSON object")
    return given


def _decoded(arguments: Given) -> Any:
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        return json.loads(arguments or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from None


def _plain(schema: object) -> Any:
    """A JSON schema that is simple for models: no titles, and no null for optional values."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        (given,) = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
        schema = {**{k: v for k, v in schema.items() if k not in ("anyOf", "default")}, **given}
    return {
        key: {name: _plain(field) for name, field in value.items()}
        if key == "properties"
        else _plain(value)
        for key, value in schema.items()
        if key != "title"
    }
