"""Layers: folders with the packages of an environment, and the interpreter that they are made for.

In a box they appear at the same paths on every runtime, read-only:

/opt/sandbox/python   Python packages, found by the box's own python3 after those of its user
/opt/sandbox/python/bin, /node_modules/.bin   their programs, on PATH
/node_modules         npm packages: node looks there last, from every folder
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import WORKSPACE

PYTHON_PACKAGES = "/opt/sandbox/python"
NODE_PACKAGES = "/node_modules"
HOST_PACKAGES = "/opt/sandbox/site"
"""Where an embedded box has the host's own packages, whose folder SITE is mounted over."""
PROGRAMS = (f"{PYTHON_PACKAGES}/bin", f"{NODE_PACKAGES}/.bin")
OWN_PROGRAMS = f"{WORKSPACE}/.local/bin"
"""Installed by the box's user; before PROGRAMS on PATH."""

PYTHON, NODE, SITE, FILES = "python", "node_modules", "site", "files"
"""The folders of a layer."""
PATH_FILE = "sandbox-environment.pth"
_PATH_LINE = "import site, os; os.path.isdir({0!r}) and site.addsitedir({0!r})\n"
"""A .pth file and not PYTHONPATH: that one would go before the packages of a user's own virtual
environment and of `pip install --user`, and would be lost where a command sets it."""

PROBE = (
    "import json, os, platform, site, sys\n"
    "print(json.dumps({\n"
    " 'executable': sys.executable, 'version': list(sys.version_info[:3]),\n"
    " 'machine': platform.machine(), 'libc': list(platform.libc_ver()),\n"
    " 'site': site.getsitepackages(),\n"
    " 'markers': {\n"
    "  'implementation_name': sys.implementation.name,\n"
    "  'implementation_version': platform.python_version(), 'os_name': os.name,\n"
    "  'platform_machine': platform.machine(), 'platform_release': '',\n"
    "  'platform_system': platform.system(), 'platform_version': '',\n"
    "  'python_full_version': platform.python_version(),\n"
    "  'platform_python_implementation': platform.python_implementation(),\n"
    "  'python_version': '.'.join(platform.python_version_tuple()[:2]),\n"
    "  'sys_platform': sys.platform}}))\n"
)
"""Prints what Interpreter.read() takes."""
_OLDEST_GLIBC, _NEWEST_MUSL = 5, 2


def path_file() -> str:
    """The .pth file that adds a layer to an interpreter, and an embedded box's host packages."""
    return "".join(_PATH_LINE.format(folder) for folder in (PYTHON_PACKAGES, HOST_PACKAGES))


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The python3 of boxes: what its packages have to fit."""

    executable: str
    version: tuple[int, int, int]
    machine: str
    libc: tuple[str, str]
    local: bool = False
    """Whether the executable is one of this machine."""
    site: tuple[str, ...] = ()
    """Its folders for packages."""
    markers: Mapping[str, str]
    """Environment markers, as in `tomli; python_version < "3.11"`."""

    @classmethod
    def read(cls, output: str, *, of: str) -> Self:
        """From the output of PROBE. Raises RuntimeUnavailable."""
        try:
            found: dict[str, Any] = json.loads(output)
            return cls(
                executable=str(found["executable"]),
                version=tuple(found["version"]),
                machine=str(found["machine"]),
                libc=tuple(found["libc"]),
                site=tuple(found["site"]),
                markers=dict(found["markers"]),
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise RuntimeUnavailable(
                f"the python3 of {of} does not work: it answered {output[-300:]!r}"
            ) from exc

    @property
    def minor(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    @cached_property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags of the wheels that it can use, the newest first."""
        kind, number = self.libc
        if kind == "glibc":
            newest = int(number.split(".")[1])
            tags = [f"manylinux_2_{minor}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
            tags += ["manylinux2014", "manylinux2010", "manylinux1"]
        else:
            tags = [f"musllinux_1_{minor}" for minor in range(_NEWEST_MUSL, -1, -1)]
        return tuple(f"{tag}_{self.machine}" for tag in (*tags, "linux"))

    def identity(self) -> dict[str, Any]:
        """What the packages of a layer depend on; a patch release is not part of it."""
        kept = {n: v for n, v in self.markers.items() if not n.endswith("full_version")}
        kept.pop("implementation_version", None)
        return {"platforms": self.platforms, "markers": kept, "local": self.local}
