"""Connections to what listens in a sandbox, and previews of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self, TypedDict

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import Model, Request, Target

Port = Annotated[int, Field(ge=1, le=65535, examples=[8080])]


class ConnectRequest(Target):
    """Where to connect to: a port of the sandbox's loopback, or a unix socket in it."""

    port: Port | None = None
    path: str | None = Field(None, min_length=1, max_length=107, examples=["/workspace/app.sock"])
    unpause: bool = Field(
        True, description="False: a paused session is not woken, and the answer is 409."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.port is None) == (self.path is None):
            raise ValueError("give either port or path")
        return self


class OpenPorts(Request):
    """Every port of a sandbox as a preview, without exposing it first."""

    public: bool = Field(
        True,
        description="Whether anybody who knows the URL may open it. Otherwise only those with a "
        "token: of `expose`, or in the header `e2b-traffic-access-token` the one that the routes "
        "for e2b's SDK tell.",
    )
    unpause: bool = Field(True, description="Whether a request wakes a paused sandbox.")
    host: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._:${}-]{1,255}$",
        description="The Host header that applications see, in which `${PORT}` is the port. Left "
        "out: the one of the preview.",
    )


class PortOptions(TypedDict, total=False):
    """OpenPorts, as a caller writes it."""

    public: bool
    unpause: bool
    host: str | None


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
