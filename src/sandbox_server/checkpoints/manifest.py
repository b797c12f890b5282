"""The manifest of a checkpoint: what it is a copy of, and where its files are stored."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox_sdk.protocol.errors import CheckpointDamaged, CheckpointNotFound
from sandbox_sdk.protocol.models import Checkpoint, LeftOutFile
from sandbox_server.storage.history import moment

FORMAT = 1


class Segment(NamedTuple):
    digest: str
    """sha256 of its bytes."""
    size: int
    stored: int
    """Bytes that it takes in the store."""


class DiskCopy(BaseModel):
    """/workspace, as a copy of its disk on the machine of the worker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    file: str
    """Its own, also of a call that is repeated while the first one goes on."""
    provider: str
    size: int
    used: int
    inodes: int
    owner: int
    """The uid that its files have."""


class Manifest(BaseModel):
    """A later version may add fields: they are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    checkpoint_id: str
    tenant: str
    thread_id: str
    session_id: str
    generation: int
    name: str | None = None
    metadata: Mapping[str, str] = {}
    automatic: bool = False
    """Made by the server, which may delete it."""
    created_at: float
    parent: str | None = None
    """The checkpoint that its session began with, or the last one of it."""
    environment: str | None = None
    asked: Mapping[str, Any] = {}
    """What its session was made with, so that one from here can have the same."""
    cwd: str | None = None
    files: int
    folders: int
    size: int
    added: int
    """Bytes that the store had not had before."""
    running: list[str] = []
    left_out: list[LeftOutFile] = []
    left_out_more: int = 0
    paused_ms: float = 0.0
    segments: Annotated[list[Segment], Field(min_length=1)]
    disk: DiskCopy | None = None
    """Else /workspace is in the segments."""

    def answer(self) -> Checkpoint:
        fields = {name: getattr(self, name) for name in Checkpoint.model_fields}
        return Checkpoint(**{**fields, "created_at": moment(self.created_at)})


def new_id() -> str:
    """Sorts by time."""
    return f"cp-{int(time.time() * 1000):012x}-{os.urandom(5).hex()}"


def folder_of(tenant: str) -> str:
    """Tenants share nothing, not even equal files: one could tell what another has."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def decoded(data: bytes, checkpoint_id: str) -> Manifest:
    """Raises CheckpointDamaged."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as exc:
        raise damaged(checkpoint_id, "its description cannot be read") from exc
    if manifest.format > FORMAT:
        raise damaged(checkpoint_id, "a later version has made it: upgrade this server")
    return manifest


def damaged(checkpoint_id: str, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"checkpoint {checkpoint_id} cannot be used: {why}")


def not_found(checkpoint_id: str) -> CheckpointNotFound:
    """The same for one of another tenant as for none at all."""
    return CheckpointNotFound(
        f"no checkpoint {checkpoint_id!r}: it was deleted, or never was; list them to see which"
        " there are"
    )
