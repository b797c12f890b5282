"""The programs that install packages: which they are, and running one with its output kept."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox_sdk.protocol.errors import EnvironmentFailed, RuntimeUnavailable
from sandbox_server.runtime.base import Tell
from sandbox_server.runtime.layers import Interpreter

KEPT_LINES = 40
"""Of a failed program's output."""
_LONGEST_LINE = 1 << 16


def pip_install(packages: Sequence[str], into: Path, python: Interpreter) -> list[str]:
    """pip of the server's own interpreter. Wheels only: installing one runs nothing of it."""
    pip_for = str(Path(__file__).with_name("pip_for.py"))
    return [
        *(sys.executable, "-P", pip_for, json.dumps(dict(python.markers))),
        *("install", "--target", str(into), "--only-binary", ":all:", "--no-compile"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
        *("--implementation", "cp", "--python-version", python.minor),
        *(word for platform in python.platforms for word in ("--platform", platform)),
        *("--", *packages),
    ]


def pip_variables() -> dict[str, str]:
    """What pip is imported from, if not from the server's packages. Raises RuntimeUnavailable."""
    if importlib.util.find_spec("pip") is not None:
        return {}
    bundled = importlib.util.find_spec("ensurepip")
    folder = Path(bundled.origin).parent / "_bundled" if bundled and bundled.origin else Path()
    for wheel in sorted(folder.glob("pip-*.whl")):
        return {"PYTHONPATH": str(wheel)}
    raise RuntimeUnavailable(
        f"packages are installed with the server's pip, and {sys.executable} has none:"
        " `python3 -m ensurepip`, or apt install python3-venv"
    )


def compile_all(executable: str, folder: Path) -> list[str]:
    """Compiling runs nothing of the packages. Boxes could not keep what they compile themselves."""
    script = (
        "import compileall, sys;"
        " from py_compile import PycInvalidationMode as mode;"
        " compileall.compile_dir(sys.argv[1], quiet=2, workers=0, ddir='/opt/sandbox/python',"
        " invalidation_mode=mode.UNCHECKED_HASH)"
    )
    return [executable, "-I", "-c", script, str(folder)]


def npm_install(npm: Sequence[str], packages: Sequence[str], into: Path, machine: str) -> list[str]:
    """Without the packages' install scripts: they would run on the server's machine."""
    cpu = {"x86_64": "x64", "aarch64": "arm64", "armv7l": "arm"}.get(machine, machine)
    return [
        *npm,
        *("install", "--prefix", str(into), "--ignore-scripts", "--omit=dev"),
        *("--no-audit", "--no-fund", "--no-package-lock", "--no-update-notifier"),
        *("--os=linux", f"--cpu={cpu}"),
        *("--", *packages),
    ]


async def run(
    words: Sequence[str], *, tell: Tell, what: str, variables: Mapping[str, str] | None = None
) -> None:
    """Run a program to its end. Raises EnvironmentFailed with the end of its output. If cancelled,
    it is killed with everything it has started."""
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd="/",
        env={**os.environ, **(variables or {})},
        limit=_LONGEST_LINE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        while line := await _line(process.stdout):
            if text := line.decode("utf-8", "replace").rstrip():
                kept.append(text)
                tell(text)
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code != 0:
        raise EnvironmentFailed(f"{what} failed", log=list(kept))


async def _line(output: asyncio.StreamReader) -> bytes:
    try:
        return await output.readline()
    except ValueError:  # Longer than the limit; what was read so far is dropped.
        return b"(a long line)\n"
