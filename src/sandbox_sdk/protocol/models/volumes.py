"""Volumes: named folders of a tenant that outlive sessions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from sandbox_sdk.protocol.models.base import UNREACHABLE, WORKSPACE, Model, Request
from sandbox_sdk.protocol.models.limits import Disk

MAX_VOLUMES = 8
"""Of one session."""

VolumeName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", examples=["datasets"])
]
VolumeMode = Literal["rw", "ro"]


def _in_workspace(path: Any) -> Any:
    """Like all paths of callers, a relative one is in the workspace."""
    if isinstance(path, str) and not path.startswith("/"):
        return f"{WORKSPACE}/{path}".rstrip("/")
    return path.rstrip("/") if isinstance(path, str) else path


VolumePath = Annotated[
    str,
    BeforeValidator(_in_workspace),
    Field(max_length=512, examples=[f"{WORKSPACE}/datasets"]),
]


class VolumeOptions(TypedDict):
    """A volume that a session is to have, as a program writes it: see VolumeMount."""

    name: NotRequired[str]
    source: NotRequired[str]
    path: str
    mode: NotRequired[VolumeMode]


class VolumeMount(Request):
    """A volume that a session is to have."""

    name: VolumeName | None = Field(
        None, description="Which. It is made if there is none and `mode` is `rw`."
    )
    source: str | None = Field(
        None,
        max_length=4096,
        pattern=r"^/[^\x00]*$",
        description="Instead of a name: a folder of the server's machine, as far as its operator "
        "allows it.",
    )
    path: VolumePath = Field(description="Where: a folder directly in /workspace.")
    mode: VolumeMode = Field(
        "rw",
        description="`rw` for one thread at a time, or `ro` for any number at the same time. Left "
        "out: `rw`, of a `source` `ro`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _folders_are_read(cls, given: Any) -> Any:
        if isinstance(given, dict) and "mode" not in given and given.get("source") is not None:
            return {**given, "mode": "ro"}
        return given

    @model_serializer(mode="wrap")
    def _with_mode(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Its default depends on the others, so it is never left out."""
        return {**dump(self), "mode": self.mode}

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.name is None) == (self.source is None):
            raise ValueError("give exactly one of name and source")
        return self


def check_mounts(mounts: Sequence[VolumeMount]) -> None:
    """Raises ValueError for places that cannot be, and for what is named twice."""
    for mount in mounts:
        folder, _, name = mount.path.rpartition("/")
        if folder != WORKSPACE or name in ("", ".", "..") or "\0" in name:
            raise ValueError(
                f"volumes: {mount.path!r} is no folder directly in {WORKSPACE}; write"
                f" {WORKSPACE}/{mount.name or 'folder'}"
            )
        if len(name.encode("utf-8", "surrogatepass")) > 255 or not name.isprintable():
            raise ValueError(f"volumes: {mount.path!r} cannot be the name of a folder")
    for what in ("name", "path"):
        given = [each for mount in mounts if (each := getattr(mount, what)) is not None]
        if twice := next((each for each in given if given.count(each) > 1), None):
            raise ValueError(f"volumes: two have the {what} {twice!r}")


class MountedVolume(Model):
    """A volume that a session has."""

    name: str | None = None
    source: str | None = Field(None, description="Of a folder of the server's machine: its path.")
    path: str
    mode: VolumeMode


class VolumeUse(Model):
    """A thread that has a volume now."""

    thread_id: str
    mode: VolumeMode


class Volume(Model):
    name: str
    size: int = Field(description="Bytes of its disk: what is in it cannot become more.")
    used: int = Field(description="Bytes that it takes on the server's disk now.")
    created_at: datetime
    worker: str = Field(description="The server that has it.")
    mounted_by: list[VolumeUse] = Field(
        default_factory=list, description="The live sessions that have it."
    )


class CreateVolumeRequest(Request):
    name: VolumeName = Field(description="New for this tenant.")
    size: Disk | None = Field(
        None,
        description="Bytes, or with a unit: `4g`. Left out: SANDBOX_VOLUME_SIZE of the server.",
    )


class VolumeTarget(Request):
    name: VolumeName = Field(description="Which.")


class VolumeList(Model):
    volumes: list[Volume] = Field(description="By name.")
    quota: int = Field(description="Bytes that the sizes of all of them may come to.")
    unreachable: list[str] = Field(default_factory=list, description=UNREACHABLE)


class VolumeDeleted(Model):
    name: str
