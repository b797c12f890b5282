"""Disks of boxes on real loop devices."""

import errno
import fcntl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox_server.runtime import loop_disk

pytestmark = pytest.mark.skipif(
    loop_disk.obstacle(Path("/tmp")) != "", reason="no disk can be attached on this machine"
)


def new_disk(folder: Path) -> loop_disk.LoopDisk:
    return loop_disk.new_disk(folder, size=4 << 20, inodes=64, label="sandbox-test")


def test_a_device_that_is_busy_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that somebody else was offered too, or has just let go of."""
    real: Callable[..., Any] = fcntl.ioctl
    free_at = time.monotonic() + 0.3

    def busy(fd: int, request: int, *more: Any) -> Any:
        if request == loop_disk._LOOP_CONFIGURE and time.monotonic() < free_at:
            raise OSError(errno.EBUSY, "busy")
        return real(fd, request, *more)

    monkeypatch.setattr(fcntl, "ioctl", busy)
    with new_disk(tmp_path) as disk:
        assert Path(disk.device).is_block_device()


def test_one_that_stays_busy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = fcntl.ioctl

    def busy(fd: int, request: int, *more: Any) -> Any:
        if request == loop_disk._LOOP_CONFIGURE:
            raise OSError(errno.EBUSY, "busy")
        return real(fd, request, *more)

    monkeypatch.setattr(fcntl, "ioctl", busy)
    monkeypatch.setattr(loop_disk, "_FREE_S", 0.2)
    with pytest.raises(OSError, match=r"no loop device became free within 0\.2 s"):
        new_disk(tmp_path)


def test_many_at_once_have_a_device_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as together:
        disks = list(together.map(lambda _: new_disk(tmp_path), range(64)))
    try:
        assert len({disk.device for disk in disks}) == len(disks)
    finally:
        for disk in disks:
            disk.close()
