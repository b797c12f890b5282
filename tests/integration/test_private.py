"""What a server keeps on its machine is for its own user alone."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from sandbox_sdk import AsyncSandboxClient, LocalBackend
from sandbox_server.audit.log import AuditLog
from sandbox_server.private import private_folder
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.bubblewrap import BubblewrapRuntime, host
from sandbox_server.sessions.sqlite import SqliteRegistry
from tests.contract.conftest import RUNTIMES, state_dir

__all__ = ["state_dir"]

needs_boxes = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(folder: Path) -> dict[str, str]:
    """What other users could read, write or connect to, if they could get into the folder."""
    found = {}
    for path in folder.rglob("*"):
        shared = "shared" in path.relative_to(folder).parts  # Programs of ours, no secrets.
        if not (shared or path.is_symlink()) and mode(path) & 0o077:
            found[str(path.relative_to(folder))] = oct(mode(path))
    return found


@needs_boxes
async def test_a_state_folder_is_closed(state_dir: Path) -> None:
    """Also one that was open, with a registry in it that others could read."""
    folder = state_dir / "wide"
    folder.mkdir()
    folder.chmod(0o755)
    old = folder / "old.sqlite"
    old.touch(mode=0o644)
    before = os.umask(0)
    try:
        backend = LocalBackend(runtime="bubblewrap", state_dir=folder)
        async with AsyncSandboxClient("private", backend=backend) as sandbox:
            await sandbox.execute("true")
            kinds = {path.suffix for path in folder.iterdir()}
            assert {".sqlite", ".lock", ".sock", ".sqlite-wal", ".sqlite-shm"} <= kinds
            assert mode(folder) == 0o700
            assert list(open_to_others(folder)) == ["old.sqlite"], "not of this server"
            await sandbox.cleanup()
    finally:
        os.umask(before)
    await SqliteRegistry(old).close()
    assert mode(old) == 0o600


@needs_boxes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives boxes users of their own")
async def test_users_of_boxes_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the launcher cannot lay out a box, bubblewrap does it as the box's own user."""
    monkeypatch.setattr(host, "stage_folder", lambda _: "")
    # Not below pytest's own folder, which another run may close while this one is at work.
    with tempfile.TemporaryDirectory(prefix="passed-") as top:
        Path(top).chmod(0o711)
        await check_passing(Path(top) / "state")


async def check_passing(folder: Path) -> None:
    async with BubblewrapRuntime(state_dir=folder) as runtime:
        box = await runtime.create(BoxSpec(owner="passing", deadman_s=60))
        try:
            async with box.agent() as warden:
                await warden.ping()
            assert mode(folder) == 0o711
            assert open_to_others(folder) == {}
        finally:
            await box.destroy()


def test_a_folder_with_things_of_others_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    tmp_path.chmod(0o755)
    private_folder(tmp_path)
    assert mode(tmp_path) == 0o755
    (tmp_path / "theirs").rename(tmp_path / "a.lock")
    private_folder(tmp_path)
    assert mode(tmp_path) == 0o700


def test_an_audit_log_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch()
    path.chmod(0o664)
    with AuditLog(path) as audit:
        audit.write(command="true")
    assert mode(path) == 0o660
