"""The server's own interpreter, packed to run the warden in an image that has no python3.

It comes with all it needs: its standard library, the C libraries of both, and the loader that
starts it. So it runs in any image for this machine's processor, whatever C library that has.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.runtime.docker.config import FOLDER, PYTHON, READABLE_PYTHON

_CARRIED = f"{FOLDER}/carried"
_LOADER = f"{_CARRIED}/ld"
_LEFT_OUT = frozenset(
    ("__pycache__", "asyncio", "concurrent", "curses", "dbm", "distutils", "ensurepip",
     "html", "http", "idlelib", "lib2to3", "multiprocessing", "pydoc_data", "site-packages",
     "dist-packages", "sqlite3", "test", "tests", "tkinter", "turtledemo", "unittest", "venv",
     "wsgiref", "xml", "xmlrpc")
)  # fmt: skip
"""Packages of the standard library that the warden does not use."""
_NOT_NEEDED = ("_tkinter", "_test", "_sqlite3", "_curses", "_dbm", "_gdbm", "readline", "_ssl")
"""Beginnings of the names of modules in C that it does not use either."""
_LIBRARY = re.compile(r"(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)")


@cache
def carried_python() -> bytes:
    """A tar to unpack at the root of an image; FOLDER/python3 then is this interpreter.

    Raises InvalidRequest if it cannot be carried.
    """
    try:
        return _packed()
    except (OSError, subprocess.SubprocessError, LookupError) as exc:
        raise InvalidRequest(
            f"the server's own python3 cannot be brought along ({exc}): install Python 3.8 or newer"
            " in the image"
        ) from exc


def _packed() -> bytes:
    python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = dict(_modules(stdlib))
    compiled = [path for path in files.values() if path.suffix == ".so"]
    libraries = _libraries([python, *compiled])
    (loader,) = [path for name, path in libraries.items() if name.startswith("ld")]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        _add(archive, f"{_CARRIED}/bin/python3", python.read_bytes(), 0o755)
        for name, path in files.items():
            _add(archive, f"{_CARRIED}/lib/{stdlib.name}/{name}", path.read_bytes())
        for name, path in libraries.items():
            _add(archive, f"{_CARRIED}/libs/{name}", path.read_bytes(), 0o755)
        # Not readable by the box's user, so that the warden's process is not dumpable.
        _add(archive, _LOADER, loader.read_bytes(), 0o711)
        _add(archive, f"{_LOADER}-readable", loader.read_bytes(), 0o755)
        _add(archive, PYTHON, _script(_LOADER), 0o755)
        _add(archive, READABLE_PYTHON, _script(f"{_LOADER}-readable"), 0o755)
    return buffer.getvalue()


def _script(loader: str) -> bytes:
    words = f'{loader} --library-path {_CARRIED}/libs {_CARRIED}/bin/python3 "$@"'
    return f"#!/bin/sh\nexec {words}\n".encode()


def _modules(stdlib: Path) -> Iterator[tuple[str, Path]]:
    """The files of the standard library, by their name in it."""
    for folder, folders, names in os.walk(stdlib):
        folders[:] = [n for n in folders if n not in _LEFT_OUT and not n.startswith("config-")]
        for name in names:
            path = Path(folder, name)
            if path.suffix == ".py" or (path.suffix == ".so" and not name.startswith(_NOT_NEEDED)):
                yield str(path.relative_to(stdlib)), path


def _libraries(programs: list[Path]) -> dict[str, Path]:
    """What programs load, by file name, with the loader itself. Raises LookupError."""
    done = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, timeout=60, check=False
    )
    found = {Path(path).name: Path(path).resolve() for path in _LIBRARY.findall(done.stdout)}
    if not any(name.startswith("libc.") for name in found):
        raise LookupError(f"ldd does not tell the libraries of {programs[0]}")
    return found


def _add(archive: tarfile.TarFile, path: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
