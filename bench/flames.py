"""Flame graphs of running Python processes, by py-spy."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from bench import processes
from bench.results import Results

TAKES_S = 8.0
_SECONDS, _RATE = 5, 250
_COMMAND_LINE = re.compile(r">[^<>]*py-spy record [^<>]*<")
"""The title that py-spy gives: how it was started, with paths of the machine."""


def program() -> str | None:
    return shutil.which("py-spy", path=str(Path(sys.executable).parent))


async def take(found: Results, name: str, pid: int) -> None:
    """Where the process spends its time, as an SVG. Nothing where there is no py-spy."""
    spy = program()
    if spy is None:
        return
    with tempfile.NamedTemporaryFile(suffix=".svg") as file:
        await processes.run(
            spy, "record", "--pid", str(pid), "--output", file.name, "--duration", str(_SECONDS),
            "--rate", str(_RATE), "--nonblocking",
        )  # fmt: skip
        picture = _COMMAND_LINE.sub(">py-spy<", file.read().decode())
        found.pictures[f"flame_{name}"] = picture
