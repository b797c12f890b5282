"""The warden as one file: a reproducible zipapp of the sandbox_warden sources."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import zipfile
from functools import cache
from importlib.resources import files

from sandbox_server.runtime.base import USUAL_USER, BoxSpec
from sandbox_warden.cells import SOURCES, bridge_sources

_MAIN = b"import sandbox_warden.__main__\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = 1
"""Flag in a .pyc header: do not check the source."""


@cache
def warden_zipapp() -> bytes:
    """The zipapp. It runs on Python 3.8 and newer."""
    sources = {
        f"sandbox_warden/{item.name}": item.read_bytes()
        for item in files("sandbox_warden").iterdir()
        if item.name.endswith((".py", ".sh"))
    }
    # Wardens are compiled in their boxes; the bridge runs with any Python there.
    sources[f"sandbox_warden/{SOURCES}"] = bridge_sources()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted({"__main__.py": _MAIN, **sources}.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@cache
def compiled_zipapp() -> bytes:
    """The same, with what this server's Python compiles its sources to. A Python of the same
    version starts it in half the time, any other one uses the sources."""
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little") + bytes(8)
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(warden_zipapp())) as sources,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in sources.namelist():
            data = sources.read(name)
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
            if name.endswith(".py"):
                code = marshal.dumps(compile(data, name, "exec", dont_inherit=True))
                info = zipfile.ZipInfo(f"{name}c", _EPOCH)
                archive.writestr(info, head + code, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


SAVE_ARTIFACT = "save_artifact"
"""The command by which a box marks files to be kept."""


@cache
def save_artifact() -> str:
    """The script behind that command."""
    return files("sandbox_warden").joinpath("save_artifact.sh").read_text()


@cache
def warden_version() -> str:
    """A short hash of this warden's sources."""
    return hashlib.sha256(warden_zipapp()).hexdigest()[:12]


def warden_arguments(spec: BoxSpec, box_id: str) -> list[str]:
    """The arguments of a warden that do not depend on the runtime."""
    volumes = "/".join(volume.name for volume in spec.volumes)
    return [
        f"box={box_id}",
        f"build={warden_version()}",
        f"deadman_s={spec.deadman_s:g}",
        f"pids={spec.limits.pids}",
        f"open_files={spec.limits.open_files}",
        *([f"volumes={volumes}"] if volumes else []),
        *([f"home={spec.user.home}"] if spec.user != USUAL_USER else []),
    ]
