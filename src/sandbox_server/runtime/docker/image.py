"""Images for boxes: derived from any image with bash by adding the warden, and a Python for it
where the image has none."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import platform
import time
from importlib.resources import files
from typing import Any, NamedTuple

import aiodocker
import aiohttp
import structlog
from aiodocker.containers import DockerContainer

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.base import HOME, USUAL_USER, BoxUser
from sandbox_server.runtime.docker.build import packed
from sandbox_server.runtime.docker.config import FOLDER, PYTHON, BoxImage
from sandbox_server.runtime.docker.engine import Engine
from sandbox_server.runtime.docker.interpreter import carried_python
from sandbox_server.runtime.docker.prepare import HOSTS, NO_BASH, OLD_PYTHON
from sandbox_server.runtime.warden import zipapp

log = structlog.get_logger()

REPOSITORY = "sandbox-box"
_LABEL_BASE = "sandbox.image.base"
_NAME_PREFIX = "sandbox-derive-"
_LEFT_AFTER_S = 900
_OWN_PREFIX = "sandbox-"
"""Images with this prefix are built locally, never pulled."""
_PULL_S = 900
FRESH_S = 1.0
"""How long a lookup is cached, so that a burst of new boxes does not repeat it."""
_PREPARE_S = 300
_CONFIG: dict[str, Any] = {
    "User": "0:0",
    "WorkingDir": "/",
    "Entrypoint": ["python3", "-I", "-S", f"{FOLDER}/prepare.py"],
    "Cmd": [],
    "Healthcheck": {"Test": ["NONE"]},
    "HostConfig": {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
        "SecurityOpt": ["no-new-privileges"],
        "Memory": 512 << 20,
        "PidsLimit": 64,
        "LogConfig": {"Type": "none"},
    },
}
_PREPARED = (FOLDER, WORKSPACE, HOME.rpartition("/")[0])
_CHANGES = ["USER 1000:1000", "WORKDIR /workspace", "ENTRYPOINT []", 'CMD ["bash"]']
_WRONG = {
    NO_BASH: "has no bash: install it in the image",
    OLD_PYTHON: "has a python3 older than 3.8: install a newer one in the image",
}


class _NoPython(Exception):
    """An image has no python3."""


class _Wanted(NamedTuple):
    """An image that is to be derived."""

    base: str
    base_id: str
    user: BoxUser

    @property
    def name(self) -> str:
        recipe = [
            self.base_id,
            zipapp.warden_version(),
            _prepare_source(),
            json.dumps([_CONFIG, _CHANGES]),
            *([repr(self.user)] if self.user != USUAL_USER else []),
        ]
        digest = hashlib.sha256("\n".join(recipe).encode()).hexdigest()
        return f"{REPOSITORY}:{digest[:12]}"

    @property
    def label(self) -> str:
        """What it is derived from, and for whom."""
        if self.user == USUAL_USER:
            return self.base
        return f"{self.base} for {self.user.name} in {self.user.home}"


class BoxImages:
    """Derives images for boxes. Derived images are reused across processes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._deriving = asyncio.Lock()
        self._looked: dict[tuple[str, BoxUser], tuple[float, BoxImage]] = {}

    async def derived(self, base: str, user: BoxUser = USUAL_USER) -> BoxImage:
        """The derived image for base and its user, looked up at most FRESH_S ago.

        Raises RuntimeUnavailable if base cannot be found or pulled, InvalidRequest if it lacks
        something that a box needs.
        """
        looked_at, image = self._looked.get((base, user), (-FRESH_S, None))
        if image is None or time.monotonic() - looked_at > FRESH_S:
            image = await self._derived(base, user)
            self._looked[base, user] = time.monotonic(), image
        return image

    async def _derived(self, base: str, user: BoxUser) -> BoxImage:
        about = await self.base(base)
        _refuse_volumes(base, about)
        wanted = _Wanted(base, str(about["Id"]), user)
        found = await self._find(wanted.name)
        if found is not None:
            return found
        async with self._deriving:
            found = await self._find(wanted.name)
            if found is None:
                await self._derive(wanted)
                found = await self._find(wanted.name)
        name = wanted.name
        if found is None:
            raise RuntimeUnavailable(f"image {name} was removed right after its build; try again")
        return found

    async def base(self, base: str) -> dict[str, Any]:
        """About an image, pulled if it is missing. Raises RuntimeUnavailable."""
        about = await self._engine.image(base)
        if about is None:
            await self._pull(base)
            about = await self._engine.image(base)
        if about is None:
            raise RuntimeUnavailable(f"image {base} was removed right after its pull; try again")
        return about

    async def _pull(self, base: str) -> None:
        if base.startswith(_OWN_PREFIX):
            raise RuntimeUnavailable(
                f"image {base} is not on this engine: build it with `make image`"
                " (or `sandbox image build`)"
            )
        try:
            async with asyncio.timeout(_PULL_S):
                await self._engine.client.images.pull(base)
        except aiodocker.DockerError as exc:
            why = " ".join(exc.message.split())[:200]
            message = (
                f"image {base} cannot be pulled ({why}): check its name, or `docker pull {base}`"
            )
            raise RuntimeUnavailable(message) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise self._engine.unreachable(exc) from exc

    async def _find(self, name: str) -> BoxImage | None:
        about = await self._engine.image(name)
        if about is None:
            return None
        return BoxImage(name=name, volumes=_volumes(about), hosts_file=_hosts_file(about))

    async def _derive(self, wanted: _Wanted) -> None:
        try:
            await self._derive_with(wanted)
        except _NoPython:
            carried = await asyncio.to_thread(carried_python)
            log.info("image.python_brought", image=wanted.base, bytes=len(carried))
            await self._derive_with(wanted, carried=carried)

    async def _derive_with(self, wanted: _Wanted, *, carried: bytes | None = None) -> None:
        """carried: an interpreter for an image without one."""
        with self._engine.errors():
            leftovers = {"name": [f"^/{_NAME_PREFIX}"]}
            await self._engine.remove_containers(leftovers, older_than_s=_LEFT_AFTER_S)
            python = "python3" if carried is None else PYTHON
            config = _config(wanted, python)
            async with self._engine.container(config, prefix=_NAME_PREFIX) as container:
                await container.put_archive("/", _archive())  # type: ignore[no-untyped-call]
                if carried is not None:
                    await container.put_archive("/", io.BytesIO(carried))  # type: ignore[no-untyped-call]
                await self._prepare(container, wanted.base, carried=carried is not None)
                repository, tag = wanted.name.split(":")
                await container.commit(
                    repository=repository, tag=tag, changes=_CHANGES, pause=False
                )
            label = f"{_LABEL_BASE}={wanted.label}"  # Of the same base, for the same user.
            await self._engine.remove_images(label, REPOSITORY, keep=[wanted.name])

    async def _prepare(self, container: DockerContainer, base: str, *, carried: bool) -> None:
        try:
            await container.start()
        except aiodocker.DockerError as exc:
            if exc.status not in (400, 404) and "executable file not found" not in exc.message:
                raise
            if not carried:
                raise _NoPython from exc
            raise InvalidRequest(
                f"image {base} has no python3, and the server's own does not run in it"
                f" ({' '.join(exc.message.split())[:200]}): install Python 3.8 or newer in the"
                " image"
            ) from exc
        async with asyncio.timeout(_PREPARE_S):
            code = int((await container.wait())["StatusCode"])
        if code in _WRONG:
            raise InvalidRequest(f"image {base} {_WRONG[code]}")
        if code != 0 and carried:
            raise InvalidRequest(
                f"image {base} has no python3, and the server's own, for {platform.machine()}, does"
                f" not run in it (code {code}): install Python 3.8 or newer in the image"
            )
        if code != 0:
            raise InvalidRequest(
                f"image {base} cannot be prepared for boxes: its python3 exited with code {code};"
                f" try `docker run --rm {base} python3 -c 'import zipfile, ctypes'`"
            )


def _config(wanted: _Wanted, python: str) -> dict[str, Any]:
    return {
        **_CONFIG,
        "Image": wanted.base_id,
        "Labels": {_LABEL_BASE: wanted.label},
        "Entrypoint": [python, *_CONFIG["Entrypoint"][1:], wanted.user.name, wanted.user.home],
    }


def _volumes(about: dict[str, Any]) -> tuple[str, ...]:
    return tuple((about.get("Config") or {}).get("Volumes") or {})


def _refuse_volumes(base: str, about: dict[str, Any]) -> None:
    """Volumes are not committed to an image, so nothing can be prepared below one."""
    for volume in _volumes(about):
        if any(f"{place}/".startswith(f"{volume.rstrip('/')}/") for place in _PREPARED):
            message = f"image {base} declares {volume} as a volume: remove that VOLUME line"
            raise InvalidRequest(message)


def _hosts_file(about: dict[str, Any]) -> str:
    """The file in the image's top layer, which overlay2 keeps as a plain folder."""
    driver = about.get("GraphDriver") or {}
    layer = (driver.get("Data") or {}).get("UpperDir")
    return f"{layer}{FOLDER}/{HOSTS}" if driver.get("Name") == "overlay2" and layer else ""


def _prepare_source() -> str:
    return files("sandbox_server.runtime.docker").joinpath("prepare.py").read_text()


def _archive() -> bytes:
    content = {
        "warden.pyz": zipapp.warden_zipapp(),
        "prepare.py": _prepare_source().encode(),
        zipapp.SAVE_ARTIFACT: zipapp.save_artifact().encode(),
    }
    return packed({f"{FOLDER[1:]}/{name}": data for name, data in content.items()})
