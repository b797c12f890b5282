"""The state folder of the bubblewrap runtime. A restarted server finds its boxes here.

<state>/boxes/<id>/box.json   the record, written by the launcher
<state>/boxes/<id>/sock       the warden's listening socket
<state>/uids/<uid>            as root: a link to the id of the box that uses this host uid
<state>/shared/<version>/     the warden, and our own files in the boxes' /etc
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.private import private_folder
from sandbox_server.runtime.bubblewrap import cgroups
from sandbox_server.runtime.bubblewrap.mounts import EMPTY_FILE, EMPTY_FOLDER, SHARED, START
from sandbox_server.runtime.bubblewrap.processes import Process
from sandbox_server.runtime.warden import zipapp

HALF_MADE_S = 60.0
"""A folder without a record belongs to a starting box; if older than this, it was abandoned."""
DEAD = ".dead"
"""Suffix of a folder whose box is being removed."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """box.json."""

    id: str
    owner: str
    created_at: float
    boot: str
    """The machine's boot id: pids are meaningless after a reboot."""
    keeper: Process
    monitor: Process
    limits: dict[str, float] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    claim: str = ""
    layers: list[str] = field(default_factory=list)
    """Host paths of its read-only layers."""
    gpus: str = ""
    """A GpuUse; empty if it has none."""
    disk: str = ""
    """The handle of its disk: see disk_copies.py."""
    disk_owner: int = 0
    """The uid of the files on it."""

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """None if it is missing or invalid."""
        try:
            body: dict[str, Any] = json.loads((folder / "box.json").read_bytes())
            known = {name: body[name] for name in cls.__dataclass_fields__ if name in body}
            known["keeper"] = Process(*body["keeper"])
            known["monitor"] = Process(*body["monitor"])
            return cls(**known)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def alive(self) -> bool:
        return self.boot == boot_id() and self.keeper.alive()


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class StateFolder:
    def __init__(self, path: Path, disks: Path | None = None) -> None:
        self.path = path.absolute()
        self.disks = self.path if disks is None else disks
        """For the files behind the disks of boxes."""
        self._boxes = self.path / "boxes"
        self._uids = self.path / "uids"
        self.group_prefix = cgroups.prefix_of(self.path)

    def prepare(self) -> None:
        """Create missing folders. Raises RuntimeUnavailable."""
        try:
            for folder in (self.path, self._boxes, self._uids):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            private_folder(self.path)
            for folder in (self._boxes, self._uids):
                folder.chmod(0o700)
        except OSError as exc:
            raise RuntimeUnavailable(f"cannot create state folder {self.path}: {exc}") from exc

    def allow_traversal(self) -> None:
        """Let the boxes' users reach the shared folder, without listing this one."""
        if not self.path.stat().st_mode & 0o001:
            self.path.chmod(0o711)

    def shared(self, python: str) -> Path:
        """The folder that all boxes with this interpreter share; created if missing."""
        empty = (EMPTY_FILE, EMPTY_FOLDER)
        made_of = [python, os.stat(python).st_mtime_ns, zipapp.warden_version(), SHARED, empty]
        name = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
        folder = self.path / "shared" / name
        if folder.is_dir():
            return folder
        folder.parent.mkdir(mode=0o755, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as new:
            _write_shared(Path(new, name), python)
            with contextlib.suppress(OSError):  # Another process created it first.
                os.rename(Path(new, name), folder)
        return folder

    def new_box(self) -> Path:
        folder = self._boxes / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        return folder

    def folder(self, box_id: str) -> Path:
        return self._boxes / box_id

    def claim(self, box_id: str, uids: range) -> tuple[int, Path]:
        """Reserve a host uid for a box. Returns it, and the link that marks it as used."""
        for _ in range(1000):
            uid = secrets.choice(uids)
            try:
                (self._uids / str(uid)).symlink_to(box_id)
            except FileExistsError:
                continue
            return uid, self._uids / str(uid)
        raise RuntimeUnavailable(
            f"no unused uid found in {uids.start} to {uids.stop - 1}: end sessions, or remove stale"
            f" links in {self._uids}"
        )

    def records(self) -> list[Record]:
        """The records of all running boxes. Removes leftovers of others."""
        living = []
        for folder in sorted(self._boxes.iterdir()):
            record = Record.read(folder)
            if record is not None and record.alive():
                if folder.name == record.id:
                    living.append(record)
                else:  # Its removal was interrupted.
                    kill(record)
            elif record is not None or _age_s(folder) > HALF_MADE_S:
                clear(folder, record)
        self.sweep_claims()
        return living

    def sweep_claims(self) -> None:
        for claim in self._uids.iterdir():
            with contextlib.suppress(OSError):
                if not self.folder(os.readlink(claim)).exists():
                    claim.unlink(missing_ok=True)


def _write_shared(folder: Path, python: str) -> None:
    """Write SHARED and the warden, unpacked and compiled, which halves its start time."""
    folder.mkdir()
    for path, text in SHARED.items():
        (folder / Path(path).name).write_text(text)
    (folder / zipapp.SAVE_ARTIFACT).write_text(zipapp.save_artifact())
    (folder / EMPTY_FILE).touch()
    (folder / EMPTY_FOLDER).mkdir()
    with zipfile.ZipFile(io.BytesIO(zipapp.warden_zipapp())) as archive:
        archive.extractall(folder / "warden")
    (folder / "warden" / "start.py").write_text(START)
    words = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*words, str(folder / "warden")], capture_output=True, check=False)
    for entry in (folder, *folder.rglob("*")):
        entry.chmod(0o755 if entry.is_dir() or entry.name == zipapp.SAVE_ARTIFACT else 0o644)


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0


def kill(record: Record) -> None:
    """Kill a box's PID 1; the kernel then kills the rest, and the keeper cleans up."""
    children = record.monitor.children()
    if not children and record.monitor.stop():  # Still starting; stopped, it cannot fork.
        children = record.monitor.children()
        if not children:
            record.monitor.kill()
    for child in children:
        child.kill()
    record.monitor.resume()


def clear(folder: Path, record: Record | None) -> None:
    """Remove the leftovers of a box without a keeper."""
    if record is not None:
        if record.boot == boot_id():
            kill(record)
        cgroups.remove(record.groups)
        if record.claim:
            Path(record.claim).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
