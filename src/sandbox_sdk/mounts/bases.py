"""Records on this machine of what was copied into sandboxes: the base that changes are told from.

A copy has a folder of its own, with the base, and one for each thread that has brought changes
back: forks of a thread have the same copy, and apply theirs independently.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio

from sandbox_sdk.mounts.asked import Mount
from sandbox_sdk.mounts.entries import Entry

_ID = re.compile(r"[0-9a-f]{32}")
_FIRST = "base"
_LOCKS = 256
_LOOK_S = 0.1
KEPT_S = 30 * 24 * 3600.0
"""How long a record is kept that nobody uses."""


@dataclass
class Base:
    mount: Mount
    entries: dict[str, Entry] = field(default_factory=dict)


class Bases:
    """In a folder that only this user can read: the names of files are in it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or state_folder() / "mounts"

    def new_id(self) -> str:
        return secrets.token_hex(16)

    def load(self, copy_id: str, thread_id: str) -> Base | None:
        """As the thread has it; None for a copy that this machine does not know of."""
        if not _ID.fullmatch(copy_id):
            return None
        for name in (f"{thread_id}.thread", _FIRST):
            file = self._folder / copy_id / f"{name}.json"
            with contextlib.suppress(FileNotFoundError):
                text = file.read_text()
                os.utime(file.parent)
                return _base(text)
        return None

    def save(self, copy_id: str, base: Base, *, thread_id: str | None = None) -> None:
        """thread_id: for this thread alone. Replaces what was there in one step."""
        folder = self._folder / copy_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = _FIRST if thread_id is None else f"{thread_id}.thread"
        document = {
            "source": str(base.mount.source),
            "path": base.mount.path,
            "entries": {path: asdict(entry) for path, entry in base.entries.items()},
        }
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as part:
            try:
                json.dump(document, part)
                part.flush()
                os.replace(part.name, folder / f"{name}.json")
            except BaseException:
                os.unlink(part.name)
                raise

    @contextlib.asynccontextmanager
    async def alone(self, thread_id: str) -> AsyncIterator[None]:
        """While no other client of this machine copies into the thread. A few threads share a lock,
        so that there are not more and more of them."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = zlib.crc32(thread_id.encode()) % _LOCKS
        with (self._folder / f"{number}.lock").open("a") as held:
            while True:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await anyio.sleep(_LOOK_S)
            yield

    def forget(self, copy_id: str) -> None:
        if _ID.fullmatch(copy_id):
            shutil.rmtree(self._folder / copy_id, ignore_errors=True)

    def prune(self, now: float | None = None) -> None:
        """Forget what has not been used for long."""
        oldest = (time.time() if now is None else now) - KEPT_S
        with contextlib.suppress(FileNotFoundError):
            for folder in list(self._folder.iterdir()):
                if folder.stat().st_mtime < oldest:
                    self.forget(folder.name)


def _base(text: str) -> Base | None:
    """None for a record that a later version has written, or that is damaged."""
    try:
        document = json.loads(text)
        entries = {path: Entry(**fields) for path, fields in document["entries"].items()}
        return Base(Mount(Path(document["source"]), document["path"]), entries)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def state_folder() -> Path:
    """Where local sandboxes have their state, too."""
    if given := os.environ.get("SANDBOX_STATE_DIR"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/sandbox")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "sandbox"
