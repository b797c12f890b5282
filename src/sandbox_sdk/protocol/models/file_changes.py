"""Folders that are watched, and what changes in them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models.base import WORKSPACE, Model, Target
from sandbox_sdk.protocol.models.happenings import LONGEST_WAIT_S

FileChangeKind = Literal["create", "write", "remove", "rename", "chmod", "gap"]


class WatchFilesRequest(Target):
    path: str = Field(WORKSPACE, min_length=1, description="The folder.", examples=["src"])
    recursive: bool = Field(False, description="Folders in folders too, new ones included.")


class FileWatch(Model):
    watch_id: str
    session_id: str = Field(description="Whose folder it is: a watch ends with its session.")
    path: str = Field(description="The whole path of the folder.")
    position: int = Field(description="`after` of the first request for what changes.")


class FileWatchTarget(Target):
    watch_id: str = Field(pattern=r"^[!-~]{1,64}$", examples=["9f2c11d0a1b2c3d4"])


class FileChangesRequest(FileWatchTarget):
    after: int = Field(ge=0, le=1 << 53, description="`position` of the answer before.")
    wait: float = Field(
        0.0, ge=0, le=LONGEST_WAIT_S, description="Seconds to wait if there is nothing yet."
    )


class FileChange(Model):
    position: int = Field(description="Where it is: `after` of a request for those that follow.")
    kind: FileChangeKind = Field(
        description="`rename`: it has left this name; what it became, if that is in the folder too,"
        " is told by `create`. `gap`: changes are missing here; look at the folder."
    )
    path: str = Field(description="Relative to the watched folder, which is `.` itself.")
    type: Literal["file", "directory", "symlink", "other"] | None = Field(
        None, description="Null where that is not known any more."
    )


class FileChangeList(Model):
    events: list[FileChange]
    position: int = Field(description="`after` of the next request.")


class FileWatchEnded(Model):
    ended: bool = Field(description="False if there was no such watch, or no more.")
