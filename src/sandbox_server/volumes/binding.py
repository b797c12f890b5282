"""Folders of the server's own machine that boxes can have, as far as the operator allows it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from sandbox_sdk.protocol.errors import Forbidden, InvalidRequest
from sandbox_sdk.protocol.models import VolumeMode, VolumeMount
from sandbox_server.runtime.base import BoxVolume

_SETTING = "SANDBOX_BIND_FOLDERS"


class BindFolders:
    """Of a folder that may be written to, boxes get nothing but the folder itself: one could put a
    link in the place of a folder in it while another is being made."""

    def __init__(self, allowed: Iterable[tuple[Path, VolumeMode]] = (), *, any_: bool = False):
        """any_: whether all folders are allowed, because the caller is the operator."""
        self._allowed = [(Path(os.path.realpath(path)), mode) for path, mode in allowed]
        self._any = any_

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """FOLDER:ro or FOLDER:rw each. Raises ValueError."""
        found: list[tuple[Path, VolumeMode]] = []
        for text in texts:
            folder, _, mode = text.rpartition(":")
            if mode not in ("ro", "rw") or not folder.startswith("/"):
                raise ValueError(f"{text!r} is neither /FOLDER:ro nor /FOLDER:rw")
            found.append((Path(folder), "ro" if mode == "ro" else "rw"))
        made = cls(found)
        made._check_apart()
        return made

    def _check_apart(self) -> None:
        for path, mode in self._allowed:
            for other, _ in self._allowed:
                if mode == "rw" and other != path and other.is_relative_to(path):
                    raise ValueError(f"{other} is in {path}, which boxes may write to")

    def attach(self, mount: VolumeMount) -> BoxVolume:
        """Raises Forbidden, InvalidRequest."""
        assert mount.source is not None
        real, read_only = _resolved(mount.source), mount.mode == "ro"
        if not (self._any or any(self._allows(real, mount.mode, *each) for each in self._allowed)):
            raise Forbidden(
                f"{mount.source} is not among the folders of the server that sandboxes may have"
                f" {mount.mode}: the operator names those in {_SETTING}. It is the server's machine"
                " that is meant; a folder of your own goes there with `mounts`"
            )
        if not real.is_dir():
            raise InvalidRequest(f"{mount.source} is no folder of the server's machine")
        found = real.stat()
        if os.geteuid() == 0 and found.st_uid == 0 and not read_only:
            raise InvalidRequest(
                f"{mount.source} belongs to root, so that a sandbox could leave programs there that"
                " run as root: give it to another user, or ask for ro"
            )
        return BoxVolume(
            name=mount.path.rpartition("/")[2],
            source=str(real),
            owner=(found.st_uid, found.st_gid),
            size=os.statvfs(real).f_blocks * os.statvfs(real).f_frsize,
            read_only=read_only,
        )

    @staticmethod
    def _allows(wanted: Path, wanted_mode: VolumeMode, allowed: Path, mode: VolumeMode) -> bool:
        if mode == "rw":
            return wanted == allowed
        return wanted_mode == "ro" and wanted.is_relative_to(allowed)


def _resolved(source: str) -> Path:
    """Without links and dots; as it is, where it leads through what we may not see."""
    try:
        return Path(os.path.realpath(source))
    except OSError:
        return Path(source)
