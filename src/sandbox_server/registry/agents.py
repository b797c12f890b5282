"""Tools, prompts and agents, as files of the registry declare them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from sandbox_server.registry.environments import BoxLimits, Declared, Name

ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""What every provider of models takes as the name of a tool."""
Language = Literal["python", "javascript", "typescript"]
Tenants = Annotated[
    tuple[str, ...], Field(description="Tenants that may use it. Left out: all of them.")
]


class Tool(Declared):
    """Something a model may call. It runs in the sandbox of the model's thread."""

    name: ToolName
    description: str = Field(min_length=1, description="What the model is told about it.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, description="JSON schema of its arguments: an object."
    )
    command: str | None = Field(
        None, min_length=1, description="Bash; `{{name}}` is the value of a parameter, as one word."
    )
    stdin: str | None = Field(
        None, description="What the command reads; `{{name}}` is the value of a parameter."
    )
    code: str | None = Field(
        None, min_length=1, description="Source in `language`; `args` has the arguments."
    )
    language: Language | None = Field(None, description="Of the code.")
    timeout: str | float | None = Field(None, description="Seconds, or `10m`.")
    output: Literal["text", "json", "file"] = Field(
        "text", description="What it prints: text, one JSON value, or the path of a file it made."
    )
    limit: int = Field(
        16_000, ge=100, le=1_000_000, description="Characters that a model sees of its output."
    )
    tenants: Tenants = ()


class Prompt(Declared):
    """A system prompt."""

    name: Name
    description: str = ""
    text: str = Field(min_length=1, description="With placeholders such as `{limits}`.")


class Agent(Declared):
    """What one kind of agent has: a sandbox, tools and a prompt. How it thinks is not told here."""

    name: Name
    description: str = ""
    environment: Name | None = Field(None, description="Left out: the server's default one.")
    tools: tuple[ToolName, ...] = Field((), description="Ours, such as bash, and declared ones.")
    prompt: Name | None = Field(None, description="Left out: what every model is told.")
    limits: BoxLimits = BoxLimits()
    policy: str | None = Field(
        None, description="A built-in set, or a rule file relative to this one."
    )
    provider: str | None = Field(None, description="The runtime that its boxes need.")
    tenants: Tenants = ()


class KeptTool(Tool):
    """A declared tool in the records of a session; those of a later version may have more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SessionAgent(Declared):
    """An agent with everything it names, as a session began with it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    prompt: str | None = None
    """The text with its placeholders."""
    environment: str | None = None
    about_environment: str = ""
    tools: tuple[str, ...] = ()
    declared: tuple[KeptTool, ...] = ()

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.declared if tool.name == name), None)
