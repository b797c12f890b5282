"""Connections to what listens in a sandbox, and previews of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import Model, Target

Port = Annotated[int, Field(ge=1, le=65535, examples=[8080])]


class ConnectRequest(Target):
    """Where to connect to: a port of the sandbox's loopback, or a unix socket in it."""

    port: Port | None = None
    path: str | None = Field(None, min_length=1, max_length=107, examples=["/workspace/app.sock"])

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.port is None) == (self.path is None):
            raise ValueError("give either port or path")
        return self


class PreviewTarget(Target):
    port: Port = Field(description="Of the sandbox's loopback.")


class ExposeRequest(PreviewTarget):
    public: bool = Field(
        False, description="Whether anybody who knows the URL may open it, without a token."
    )


class Preview(Model):
    """A port of a sandbox that browsers can open, at an origin of its own."""

    port: int
    session_id: str
    url: str = Field(description="To open in a browser; with the token, where it is told.")
    token: str | None = Field(
        None,
        description="What the URL of a preview that is not public needs. Told to those who expose "
        "a port, not in lists.",
    )
    public: bool
    created_at: datetime
    expires_at: datetime = Field(
        description="When the preview ends with its session, unless that is used before. Requests "
        "through the preview are use."
    )


class PreviewList(Model):
    previews: list[Preview] = Field(description="By port.")


class Unexposed(Model):
    port: int
