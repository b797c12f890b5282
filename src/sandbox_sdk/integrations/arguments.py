"""The tools as a model sees them: names, descriptions and arguments."""

from __future__ import annotations

import inspect
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sandbox_sdk.protocol.models import MAX_COMMAND, MAX_TIMEOUT_S, WORKSPACE, field_errors, told

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


ALL: dict[str, type[Arguments]] = {
    kind.name: kind
    for kind in (Bash, ReadFile, WriteFile, EditFile, ListFiles, UploadFile, DownloadFile)
}

USUAL = ("bash", "read_file", "write_file", "edit_file", "list_files")
"""The default tools of an agent. Files in base64 are more for programs than for models."""

Given = str | Mapping[str, Any]
"""The arguments of a call: as an object, or as JSON the way a model writes it."""


def schemas(names: Sequence[str] = USUAL) -> list[dict[str, Any]]:
    """The tools for `tools=` of an OpenAI-style chat completion."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": ALL[name].description(),
                "parameters": ALL[name].parameters(),
            },
        }
        for name in names
    ]


def parsed(name: str, arguments: Given) -> Arguments:
    """The arguments of a call, checked. Raises ValueError with what to tell the model."""
    if name not in ALL:
        raise ValueError(f"there is no tool {name!r}, only {', '.join(ALL)}")
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else dict(arguments)
        return ALL[name].model_validate(given)
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False), known=ALL[name].model_fields)
        raise ValueError(f"{name}: {told(wrong)}") from None
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
