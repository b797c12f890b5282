"""Images of environments: a base image with a layer and Debian packages added.

Made in a container and committed, like the images of boxes (image.py): what the engine of this
machine needs for a network, such as a proxy, is given to single commands and does not become part
of the image.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import aiodocker
from aiodocker.containers import DockerContainer

from sandbox_sdk.protocol.errors import EnvironmentFailed, InvalidRequest, RuntimeUnavailable
from sandbox_server.runtime import layers
from sandbox_server.runtime.base import BoxSpec, Layer, Tell
from sandbox_server.runtime.docker.engine import Engine
from sandbox_server.runtime.docker.image import BoxImages

REPOSITORY = "sandbox-environment"
LABEL = "sandbox.environment"
_NAME_PREFIX = "sandbox-environment-"
_FORMAT = "1"
"""Part of every tag: raise it when images are made in another way."""
_WAIT = ["sh", "-c", "while :; do sleep 1000; done"]
_APT = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get update -q"
    ' && apt-get install -y -q --no-install-recommends -o Dpkg::Options::=--force-unsafe-io -- "$@"'
    " && rm -rf /var/lib/apt/lists/* /var/cache/apt/* && find / -xdev -perm /6000 -type f"
    " -exec chmod a-s {} +"
)
_PYTHON = f"""
import compileall, os, site
folder = site.getsitepackages()[0]
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, {layers.PATH_FILE!r}), "w") as file:
    file.write({layers.path_file()!r})
from py_compile import PycInvalidationMode as mode
compileall.compile_dir({layers.PYTHON_PACKAGES!r}, quiet=2, workers=0,
                       invalidation_mode=mode.UNCHECKED_HASH)
"""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_KEPT_LINES = 40
_LEFT_AFTER_S = 7200


class EnvironmentImages:
    """Makes and finds images of environments. Whoever creates it closes it."""

    def __init__(self, engine: Engine, images: BoxImages) -> None:
        """engine: without a limit on the time of a call, which moves whole layers."""
        self._engine = engine
        self._images = images
        self._interpreters: dict[str, layers.Interpreter] = {}

    async def interpreter(self, image: str) -> layers.Interpreter:
        """The python3 of an image. Raises InvalidRequest if it has none that works."""
        base = str((await self._images.base(image))["Id"])
        if base not in self._interpreters:
            async with self._container(base, network="none") as container:
                kept = await self._run(container, ["python3", "-I", "-c", layers.PROBE], what="")
            if kept is None:
                message = f"image {image} has no python3: install Python 3.8 or newer in the image"
                raise InvalidRequest(message)
            self._interpreters[base] = layers.Interpreter.read(kept[-1] if kept else "", of=image)
        return self._interpreters[base]

    async def with_layer(self, spec: BoxSpec, layer: Layer, tell: Tell) -> BoxSpec:
        about = await self._images.base(spec.image)
        name = _name(about, layer)
        if await self._engine.image(name) is None:
            tell(f"image {name}: adding to {spec.image}")
            await self._make(about, layer, name, tell)
            tell(f"image {name}: done")
        return replace(spec, image=name)

    async def made(self, spec: BoxSpec, layer: Layer) -> tuple[int, float] | None:
        """Its bytes beyond those of the base, and when it was made."""
        base = await self._engine.image(spec.image)
        about = base and await self._engine.image(_name(base, layer))
        if not base or not about:
            return None
        created = datetime.fromisoformat(str(about["Created"])[:19] + "+00:00")
        return int(about["Size"]) - int(base["Size"]), created.timestamp()

    async def prune(self, keep: Sequence[tuple[BoxSpec, Layer]]) -> int:
        """Remove the images of all other environments, except those in use."""
        kept = set()
        for spec, layer in keep:
            if (base := await self._engine.image(spec.image)) is not None:
                kept.add(_name(base, layer))
        return await self._engine.remove_images(LABEL, REPOSITORY, keep=kept)

    async def build(self, dockerfile: str, tell: Tell) -> str:
        """The image of a Dockerfile with the files of its folder."""
        context = await asyncio.to_thread(_context, dockerfile)
        name = f"{REPOSITORY}:{hashlib.sha256(context).hexdigest()[:16]}"
        if await self._engine.image(name) is not None:
            return name
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        steps = self._engine.client.images.build(
            fileobj=io.BytesIO(context),
            encoding="identity",
            path_dockerfile=os.path.basename(dockerfile),
            tag=name,
            labels={LABEL: "dockerfile"},
            buildargs=_proxies(),
            stream=True,
        )
        with self._engine.errors():
            try:
                async for step in steps:
                    for line in str(step.get("stream") or "").splitlines():
                        kept.append(line)
                        tell(line)
            except aiodocker.DockerStreamError as exc:
                kept.append(exc.message)
                raise EnvironmentFailed("building the image failed", log=list(kept)) from exc
        return name

    async def _make(self, base: Mapping[str, Any], layer: Layer, name: str, tell: Tell) -> None:
        leftovers = {"label": [f"{LABEL}=build"]}
        await self._engine.remove_containers(leftovers, older_than_s=_LEFT_AFTER_S)
        network = "host" if layer.apt else "none"
        async with self._container(str(base["Id"]), network=network) as container:
            if layer.apt:
                tell(f"apt-get install {' '.join(layer.apt)}")
                words = ["sh", "-c", _APT, "apt", *layer.apt]
                await self._run(container, words, what="apt-get install", tell=tell, env=_proxies())
            if layer.folder is not None:
                await self._add_folder(container, layer, layer.folder)
            with self._engine.errors():
                repository, tag = name.split(":")
                changes = [*_changes(base), f"LABEL {LABEL}=layer"]
                await container.commit(repository=repository, tag=tag, changes=changes, pause=False)

    async def _add_folder(self, container: DockerContainer, layer: Layer, folder: Path) -> None:
        with tempfile.TemporaryFile(dir=folder.parent) as file:
            await asyncio.to_thread(_pack, layer, folder, file)
            with self._engine.errors():
                await container.put_archive("/", file)  # type: ignore[no-untyped-call]
        if (folder / layers.PYTHON).is_dir():
            await self._run(container, ["python3", "-I", "-c", _PYTHON], what="compiling packages")

    @contextlib.asynccontextmanager
    async def _container(self, image: str, *, network: str) -> AsyncIterator[DockerContainer]:
        config: dict[str, Any] = {
            "Image": image,
            "User": "0:0",
            "WorkingDir": "/",
            "Entrypoint": _WAIT,
            "Cmd": [],
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {LABEL: "build"},
            "HostConfig": {"NetworkMode": network, "LogConfig": {"Type": "none"}},
        }
        async with self._engine.container(config, prefix=_NAME_PREFIX) as container:
            with self._engine.errors():
                await container.start()
            yield container

    async def _run(
        self,
        container: DockerContainer,
        words: Sequence[str],
        *,
        what: str,
        tell: Tell | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str] | None:
        """The end of its output. Raises EnvironmentFailed with it; without `what`, None instead."""
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        with self._engine.errors():
            ran = await container.exec(words, environment=env, user="0:0")
            async for line in _lines(ran.start(detach=False, timeout=None)):
                kept.append(line)
                if tell is not None:
                    tell(line)
            code = (await ran.inspect())["ExitCode"]
        if code == 0:
            return list(kept)
        if not what:
            return None
        raise EnvironmentFailed(f"{what} failed with exit code {code}", log=list(kept))


async def _lines(stream: aiodocker.stream.Stream) -> AsyncIterator[str]:
    rest = b""
    async with stream:
        while (message := await stream.read_out()) is not None:
            *whole, rest = (rest + message.data).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip()
    if rest:
        yield rest.decode("utf-8", "replace").rstrip()


def _name(base: Mapping[str, Any], layer: Layer) -> str:
    recipe = json.dumps(
        [_FORMAT, str(base["Id"]), layer.digest, list(layer.apt), layers.path_file()]
    )
    return f"{REPOSITORY}:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def _changes(base: Mapping[str, Any]) -> list[str]:
    config = base.get("Config") or {}
    path = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry).get(
        "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    )
    user = config.get("User") or "0:0"
    return [
        f"ENV PATH={':'.join((layers.OWN_PROGRAMS, *layers.PROGRAMS, path))}",
        f"USER {user}",
        f"WORKDIR {config.get('WorkingDir') or '/'}",
        f"ENTRYPOINT {json.dumps(config.get('Entrypoint') or [])}",
        f"CMD {json.dumps(config.get('Cmd') or [])}",
    ]


def _proxies() -> dict[str, str]:
    names = (spelling for name in _PROXIES for spelling in (name, name.upper()))
    return {name: os.environ[name] for name in names if name in os.environ}


def _pack(layer: Layer, folder: Path, into: IO[bytes]) -> None:
    def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    with tarfile.open(fileobj=into, mode="w") as archive:
        for name, path in (
            (layers.PYTHON, layers.PYTHON_PACKAGES),
            (layers.NODE, layers.NODE_PACKAGES),
        ):
            if (folder / name).is_dir():
                _add_parents(archive, path)
                archive.add(folder / name, path[1:], filter=of_root)
        for path, source in layer.file_sources().items():
            archive.add(source, path[1:], filter=of_root)
    into.seek(0)


def _add_parents(archive: tarfile.TarFile, path: str) -> None:
    for parent in [*Path(path).parents][-2::-1]:
        member = tarfile.TarInfo(str(parent)[1:])
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(member)


def _context(dockerfile: str) -> bytes:
    """A tar of the Dockerfile's folder; the same content gives the same bytes. Raises
    RuntimeUnavailable."""
    folder = Path(dockerfile).parent
    buffer = io.BytesIO()
    try:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path in _sorted(folder.rglob("*")):
                member = archive.gettarinfo(path, str(path.relative_to(folder)))
                member.mtime = member.uid = member.gid = 0
                member.uname = member.gname = ""
                if member.isreg():
                    with open(path, "rb") as file:
                        archive.addfile(member, file)
                else:
                    archive.addfile(member)
    except OSError as exc:
        raise RuntimeUnavailable(f"{dockerfile} cannot be read: {exc}") from exc
    return buffer.getvalue()


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_symlink() or path.is_dir() or path.is_file())
