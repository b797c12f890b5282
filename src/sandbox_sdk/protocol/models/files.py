"""Files: listing, moving, and carrying them in and out."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from sandbox_sdk.protocol.models.base import WORKSPACE, Model, Target


class ListRequest(Target):
    path: str = Field(WORKSPACE, min_length=1)
    recursive: bool = Field(False, description="Folders in folders too.")
    limit: int = Field(1000, ge=1, le=100_000, description="The most entries.")


class RenameRequest(Target):
    path: str = Field(min_length=1, description="What to move.", examples=["draft.txt"])
    to: str = Field(min_length=1, description="Where it is then.", examples=["out/report.txt"])
    replace: bool = Field(False, description="Whether a file that is there already goes.")


class UploadRequest(Target):
    path: str


class DownloadRequest(Target):
    path: str = Field(min_length=1, examples=["out.csv"])


class UploadResult(Model):
    status: Literal["uploaded"] = "uploaded"
    filename: str
    path: str
    size: int
    sha256: str


class FileEntry(Model):
    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    modified_at: datetime


class ListResult(Model):
    path: str
    entries: list[FileEntry]
    truncated: bool


class DownloadInfo(Model):
    """What a download will be; a folder comes as a tar, whose size is not known before."""

    filename: str
    path: str
    type: Literal["file", "directory"]
    size: int | None
    sha256: str | None
    modified_at: datetime
