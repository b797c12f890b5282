"""Files: listing, moving, watching, and carrying them in and out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import WORKSPACE, Model, Target
from sandbox_sdk.protocol.models.happenings import LONGEST_WAIT_S

MAX_FILE_METADATA_BYTES = 4096
"""Of all of a file, each name with the prefix of extended attributes. ext4 has no room for more."""
_PREFIX_BYTES = len("user.e2b.")
FileMetadata = dict[
    Annotated[str, Field(pattern=r"^[ -~]{1,246}$")], Annotated[str, Field(pattern=r"^[ -~]*$")]
]
FileChangeKind = Literal["create", "write", "remove", "rename", "chmod", "gap"]


class ListRequest(Target):
    path: str = Field(WORKSPACE, min_length=1)
    recursive: bool = Field(False, description="Folders in folders too.")
    depth: int | None = Field(
        None,
        ge=1,
        le=256,
        description="How many folders in folders, this one included; by default one, or all of"
        " them with `recursive`.",
    )
    limit: int = Field(1000, ge=1, le=100_000, description="The most entries.")


class RenameRequest(Target):
    path: str = Field(min_length=1, description="What to move.", examples=["draft.txt"])
    to: str = Field(min_length=1, description="Where it is then.", examples=["out/report.txt"])
    replace: bool = Field(False, description="Whether a file that is there already goes.")


class StatRequest(Target):
    path: str = Field(min_length=1, examples=["out.csv"])
    follow: bool = Field(False, description="Of a link: what it leads to.")


class MkdirRequest(Target):
    path: str = Field(min_length=1, description="The folder to make.", examples=["out/plots"])


class RemoveRequest(Target):
    path: str = Field(min_length=1, description="What to remove.", examples=["out/plots"])
    recursive: bool = Field(True, description="A folder with all in it; else an empty one alone.")


class UploadRequest(Target):
    path: str
    metadata: FileMetadata = Field(
        default_factory=dict,
        description="Kept with the file as extended attributes `user.e2b.*`, and told by listings;"
        " what a file of this name had before goes. Names and values of printable ASCII. In a form"
        " it is a JSON object.",
        examples=[{"author": "ada"}],
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        size = sum(_PREFIX_BYTES + len(n) + len(value) for n, value in self.metadata.items())
        if size > MAX_FILE_METADATA_BYTES:
            most = MAX_FILE_METADATA_BYTES
            raise ValueError(f"metadata of a file has {size} bytes with its names, at most {most}")
        return self


class DownloadRequest(Target):
    path: str = Field(min_length=1, examples=["out.csv"])


class UploadResult(Model):
    status: Literal["uploaded"] = "uploaded"
    filename: str
    path: str
    size: int
    sha256: str


class LinkEnd(Model):
    """What is at the end of a link."""

    path: str
    type: Literal["file", "directory", "symlink", "other"]
    mode: str


class FileEntry(Model):
    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    modified_at: datetime
    owner: str = Field("", description="A name of the box, or a number.")
    group: str = Field("", description="A name of the box, or a number.")
    target: str | None = Field(None, description="Where a link leads, as it says.")
    leads_to: LinkEnd | None = Field(
        None, description="What is at the end of a link; null where there is nothing."
    )
    metadata: dict[str, str] | None = Field(
        None, description="Of a file or folder that has any; see `upload_file`."
    )


class MkdirResult(Model):
    created: bool = Field(description="Whether it was not there before.")
    entry: FileEntry


class RemoveResult(Model):
    status: Literal["removed"] = "removed"
    path: str


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
