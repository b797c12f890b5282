"""What a caller asks for: which folders of this machine, and where they are in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import WORKSPACE, VolumeOptions

MountOptions = Mapping[str, str] | Mapping[Path, str] | Mapping[str | Path, str]
"""Folders of this machine, each with its place in the sandbox. A place that ends with `:ro` or
`:rw` has the folder itself instead of a copy."""
_IN_PLACE = (":ro", ":rw")


@dataclass(frozen=True)
class Mount:
    source: Path
    """A folder of this machine, as a real path."""
    path: str
    """Absolute, in the sandbox."""


def mounts_of(options: MountOptions | None) -> list[Mount]:
    """Raises InvalidRequest for a folder that is not there, and for places that cannot be."""
    every = (options or {}).items()
    found = [Mount(_source(each), _place(p)) for each, p in every if not p.endswith(_IN_PLACE)]
    places = sorted(mount.path for mount in found)
    for before, after in pairwise(places):
        if PurePosixPath(after).is_relative_to(before):
            raise InvalidRequest(f"mounts: {after} is in {before}, where another folder is")
    return found


def in_place(options: MountOptions | None) -> list[VolumeOptions]:
    """Those that are not copied, as volumes. Raises InvalidRequest."""
    found: list[VolumeOptions] = []
    for each, place in (options or {}).items():
        if place.endswith(_IN_PLACE):
            source, path = str(_source(each)), _place(place[:-3])
            found.append({"source": source, "path": path, "mode": place[-2:]})  # type: ignore[typeddict-item]
    return found


def _source(given: str | Path) -> Path:
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise InvalidRequest(f"mounts: {str(given)!r} is no folder of this machine")
    return folder.resolve()


def _place(given: str) -> str:
    steps = PurePosixPath(WORKSPACE, given)
    if ".." in steps.parts or not steps.is_relative_to(WORKSPACE) or "\0" in given:
        raise InvalidRequest(
            f"mounts: {given!r} is not in {WORKSPACE}: folders are copied there, because its files"
            " are served, kept in checkpoints, and belong to the user of the sandbox"
        )
    return str(steps)
