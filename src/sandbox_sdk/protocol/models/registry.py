"""What an operator has declared: agents, their tools, and calls of these."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandbox_sdk.protocol.models.base import Model, Target
from sandbox_sdk.protocol.models.commands import ExecuteResult
from sandbox_sdk.protocol.models.files import FileEntry


class ToolInfo(Model):
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(description="JSON schema of the arguments.")


class AgentInfo(Model):
    """What an agent has in one session."""

    name: str
    prompt: str = Field(description="For the system message.")
    tools: list[ToolInfo] = Field(description="What its model may call.")


class AgentEntry(Model):
    """An agent that sessions can be made for."""

    name: str
    description: str
    environment: str | None = Field(None, description="Null: the server's default one.")
    tools: list[ToolInfo]


class EnvironmentEntry(Model):
    name: str
    description: str


class RegistryList(Model):
    agents: list[AgentEntry]
    tools: list[ToolInfo] = Field(description="Declared ones; those of agents may be others too.")
    environments: list[EnvironmentEntry]


class CallToolRequest(Target):
    tool: str = Field(min_length=1, max_length=64, description="Its name.", examples=["bash"])
    arguments: dict[str, Any] = Field(
        default_factory=dict, description="What its parameters ask for."
    )
    idempotency_key: str | None = Field(None, min_length=1, max_length=200)


class ToolImage(Model):
    """An image for a model."""

    mime: str = Field(examples=["image/png"])
    data: str = Field(description="Its bytes in base64.")

    @property
    def url(self) -> str:
        return f"data:{self.mime};base64,{self.data}"


class ToolAnswer(Model):
    """What a tool says to the model, and what that was made from."""

    text: str = Field(description="All that the model needs to see.")
    failed: bool = Field(
        False, description="Whether it did not do its work. A command with exit code 1 did."
    )
    result: ExecuteResult | None = Field(None, description="Of the command, where it ran one.")
    data: Any = Field(None, description="What a tool with JSON output has printed.")
    file: FileEntry | None = Field(None, description="What a tool with file output has made.")
    images: list[ToolImage] = Field(
        default_factory=list, description="What code has shown, for models that see."
    )
