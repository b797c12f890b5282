"""How an embedded box gets a layer: its folders are bound read-only.

The interpreter is the host's, in a read-only /usr. So that it finds the packages, a folder with a
.pth file is mounted over its folder for packages, whose own content is moved aside.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.base import BoxSpec, Layer
from sandbox_server.runtime.layers import (
    HOST_PACKAGES,
    NODE,
    NODE_PACKAGES,
    PROBE,
    PYTHON,
    PYTHON_PACKAGES,
    SITE,
    Interpreter,
)
from sandbox_server.subprocesses import output_of

_NO_FILES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/dev", "/sys", "/run")
"""Where an embedded box cannot have files of an environment."""


async def probe(executable: str) -> Interpreter:
    output = await output_of(executable, "-I", "-c", PROBE)
    found = Interpreter.read(output.decode(), of="boxes")
    return replace(found, executable=executable, local=True)


def refusal(layer: Layer) -> str:
    """Why embedded boxes cannot have what a layer is to have."""
    if layer.apt:
        return (
            f"Debian packages ({', '.join(layer.apt)}) need an image: use the docker runtime, or"
            " install them on the server's machine, whose /usr embedded boxes have"
        )
    for path in layer.files:
        if path.startswith(tuple(f"{folder}/" for folder in _NO_FILES)):
            return (
                f"embedded boxes cannot have the file {path}, since /{path.split('/')[1]} is not"
                " their own: choose another folder, or use docker"
            )
    return ""


def layered(spec: BoxSpec, layer: Layer, python: Interpreter) -> BoxSpec:
    """The spec with the folders of a layer. Raises RuntimeUnavailable."""
    if layer.folder is None:
        return spec
    layers = {path: str(source) for path, source in layer.file_sources().items()}
    layers |= _python(layer.folder, python)
    if (layer.folder / NODE).is_dir():
        layers[NODE_PACKAGES] = str(layer.folder / NODE)
    return replace(spec, layers={**spec.layers, **layers})


def _python(folder: Path, python: Interpreter) -> dict[str, str]:
    if not (folder / PYTHON).is_dir():
        return {}
    site = next((path for path in python.site if os.path.isdir(path)), None)
    if site is None:
        raise RuntimeUnavailable(
            f"{python.executable} has no folder for packages, so that its boxes cannot have any:"
            f" mkdir -p {python.site[0] if python.site else 'its site-packages'}"
        )
    return {PYTHON_PACKAGES: str(folder / PYTHON), HOST_PACKAGES: site, site: str(folder / SITE)}
