"""GPUs for boxes: which there are, which are free, and what a box needs to use one.

Nothing is recorded here: every box carries which GPUs it has, in its record or a label, so what is
free follows from the boxes that run, also after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk.protocol.errors import Capacity, InvalidRequest
from sandbox_server.runtime.base import GpuRequest

DEV = Path("/dev")
RETRY_S = 10.0
_DEVICE = re.compile(r"nvidia(\d+)")
_COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Devices that every box with a GPU has."""
_LIBRARY = re.compile(r"lib(cuda|cudadebugger|nvidia-|nvcuvid|nvoptix)")
_SYSTEM = ("/usr/", "/lib/", "/lib32/", "/lib64/")
"""Already in every embedded box."""
_LOCK_S = 0.05


@dataclass(frozen=True)
class GpuUse:
    """The GPUs of one running box."""

    numbers: tuple[int, ...]
    shared: bool

    @classmethod
    def parse(cls, text: str) -> GpuUse:
        """As __str__ writes it. Raises ValueError."""
        numbers, _, shared = text.partition(" ")
        return cls(tuple(int(number) for number in numbers.split(",")), bool(shared))

    def __str__(self) -> str:
        return ",".join(map(str, self.numbers)) + (" shared" if self.shared else "")


def present(dev: Path = DEV) -> list[int]:
    """The numbers of the GPUs of this machine."""
    found = (_DEVICE.fullmatch(name) for name in (os.listdir(dev) if dev.is_dir() else ()))
    return sorted(int(match[1]) for match in found if match)


def too_few(there: int, wanted: int) -> str:
    """Why a machine can never give so many GPUs to a box; empty if it can."""
    if wanted <= there:
        return ""
    return (
        f"needs {wanted} GPU{'s'[: wanted > 1]}, and this machine has {there or 'none'}: use one"
        " that has them, or an environment without `gpus`"
    )


def choose(there: Sequence[int], used: Sequence[GpuUse], wanted: GpuRequest) -> GpuUse:
    """GPUs for a new box: those that no box has, or for a shared request those that only sharing
    boxes have, the least used first. Raises InvalidRequest if the machine has too few, Capacity if
    too few are free."""
    if why := too_few(len(there), wanted.count):
        raise InvalidRequest(why)
    taken = {number for use in used if not (use.shared and wanted.shared) for number in use.numbers}
    load = Counter(number for use in used for number in use.numbers)
    free = sorted((n for n in there if n not in taken), key=lambda n: (load[n], n))
    if len(free) < wanted.count:
        raise Capacity(
            f"{len(free)} of {len(there)} GPUs are free, and the environment needs {wanted.count};"
            f" end a session that has some, or retry in {RETRY_S:g} s",
            retry_after_s=RETRY_S,
        )
    return GpuUse(tuple(sorted(free[: wanted.count])), wanted.shared)


@contextlib.asynccontextmanager
async def one_at_a_time(folder: Path) -> AsyncIterator[None]:
    """Held from choosing GPUs until the box that has them can be found. For all processes that use
    the same folder."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(folder / "gpus.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_S)
        yield
    finally:
        os.close(fd)


def devices(use: GpuUse, dev: Path = DEV) -> list[str]:
    """The device nodes of a box with these GPUs."""
    names = [*(f"nvidia{number}" for number in use.numbers), *_COMMON]
    return [str(dev / name) for name in names if (dev / name).exists()]


def libraries() -> list[str]:
    """The driver's libraries outside of the folders that every embedded box has."""
    listed = _output("ldconfig", "-p") or _output("/sbin/ldconfig", "-p")
    paths = {line.rpartition("=> ")[2].strip() for line in listed.splitlines() if "=> " in line}
    paths |= set(_output("nvidia-container-cli", "list", "--libraries").split())
    driver = (path for path in paths if _LIBRARY.match(os.path.basename(path)))
    return sorted(path for path in driver if not path.startswith(_SYSTEM))


def _output(*words: str) -> str:
    program = shutil.which(words[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *words[1:]], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
