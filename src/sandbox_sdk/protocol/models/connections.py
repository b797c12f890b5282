"""Connections to what listens in a sandbox."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import Target

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
