"""Turns environments into specs of boxes, building what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import random
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import structlog

from sandbox_sdk.protocol.errors import (
    EnvironmentBuilding,
    EnvironmentFailed,
    InvalidRequest,
    SandboxError,
)
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.environments.layers import LayerRecipe, LayerStore
from sandbox_server.registry.environments import Environment
from sandbox_server.runtime import gpus
from sandbox_server.runtime.base import HOME, BoxSpec, BoxUser, GpuRequest, Layer, Runtime, Tell
from sandbox_server.tasks import stop

log = structlog.get_logger(__name__)

WAIT_S = 45.0
"""How long a new session waits for a build; below the time that clients wait for an answer."""
_RETRY_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0
_SHOWN_LINES = 5
_WRITABLE = (f"{WORKSPACE}/", f"{HOME}/", "/tmp/")
_PROGRESS = ("pip install", "npm install", "apt-get", "Downloading", "Installing", "Step", "image ")
"""Lines that are logged."""


@dataclass
class _Build:
    began: float
    step: str = ""
    """The last line of progress; empty while nothing had to be made."""


@dataclass(frozen=True)
class _Failure:
    error: SandboxError
    times: int
    retry_at: float


@dataclass(frozen=True, kw_only=True)
class Status:
    """What there is of an environment on this machine."""

    state: Literal["built", "not built", "nothing to build"]
    bytes: int = 0
    made_at: float = 0.0


class Builds:
    """The builds of one process; several processes that build the same wait for each other.

    Use as an async context manager: builds that are under way at its end are given up.
    """

    def __init__(
        self,
        runtime: Runtime,
        layers: LayerStore,
        *,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._layers = layers
        self._wait_s = wait_s
        self._clock = clock
        self._building: dict[str, tuple[_Build, asyncio.Task[BoxSpec]]] = {}
        self._failed: dict[str, _Failure] = {}

    def __repr__(self) -> str:
        return f"<Builds {len(self._building)} under way, {len(self._failed)} failed>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(*(task for _, task in self._building.values()))

    async def ready(self, environment: Environment, spec: BoxSpec) -> BoxSpec:
        """The spec of a box of this environment; what is missing is built.

        Raises EnvironmentBuilding if that takes longer than a caller should wait,
        EnvironmentFailed, also for a while after a failure, and InvalidRequest if boxes of this
        runtime cannot have what it asks for.
        """
        name = environment.name
        failure = self._failed.get(name)
        if failure is not None and self._clock() < failure.retry_at:
            raise failure.error
        if name not in self._building:
            self._start(environment, spec)
        build, task = self._building[name]
        done, _ = await asyncio.wait([task], timeout=self._wait_s)
        if done and not task.cancelled():
            # The build may be one that another caller has begun, for a box that differs in these.
            built = task.result()
            return replace(
                built,
                limits=spec.limits,
                network=spec.network,
                network_env=spec.network_env,
                network_files=spec.network_files,
                disk=spec.disk,
                volumes=spec.volumes,
            )
        age_s = self._clock() - build.began
        raise EnvironmentBuilding(
            f"environment {name} is being built, for {age_s:.0f} s now"
            f" ({build.step or 'starting'}); retry in {_RETRY_S:g} s",
            retry_after_s=_RETRY_S,
        )

    async def build(self, environment: Environment, spec: BoxSpec, tell: Tell) -> BoxSpec:
        """Build an environment to its end, whatever failed before. Quick if it is built."""
        try:
            spec, recipe = await self._recipe(environment, spec, tell)
            if recipe is None:
                return spec
            layer = _layer_of(recipe)
            if why := self._runtime.refuses(layer):
                raise InvalidRequest(why)
            if not recipe.empty:
                layer = replace(layer, folder=await self._layers.made(recipe, tell))
            async with self._layers.locked(f"{layer.digest}-used", tell):
                return await self._runtime.with_layer(spec, layer, tell)
        except (EnvironmentFailed, InvalidRequest) as exc:
            raise explained(environment.name, exc) from exc

    async def status(self, environment: Environment, spec: BoxSpec) -> Status:
        """Without building anything."""
        spec, recipe = await self._recipe(environment, spec, None)
        if recipe is None:
            return Status(state="nothing to build")
        found = await self._runtime.layer_made(spec, _layer_of(recipe))
        if found is None and not self._runtime.has_images:
            info = self._layers.info(recipe.digest)
            found = None if info is None else (info.bytes, info.made_at)
        if found is None:
            return Status(state="not built")
        return Status(state="built", bytes=found[0], made_at=found[1])

    async def prune(self, environments: Iterable[Environment], spec: BoxSpec) -> int:
        """Remove what belongs to none of these environments and to no running box; returns how many
        bytes that were."""
        layers, digests = [], set()
        for environment in environments:
            with contextlib.suppress(SandboxError):
                with_image, recipe = await self._recipe(environment, spec, None)
                if recipe is not None:
                    layers.append((with_image, _layer_of(recipe)))
                    digests.add(recipe.digest)
        in_use = {part for path in await self._runtime.layers_in_use() for part in Path(path).parts}
        removed = await asyncio.to_thread(self._layers.prune, digests | in_use)
        freed = await self._runtime.prune_layers(layers)
        return freed + sum(layer.bytes for layer in removed)

    async def _recipe(
        self, environment: Environment, spec: BoxSpec, tell: Tell | None
    ) -> tuple[BoxSpec, LayerRecipe | None]:
        """The spec without a layer, and what the layer is made of, if there has to be one."""
        self._refuse(environment)
        spec = box_spec(environment, spec)
        if environment.dockerfile is not None and tell is not None:
            spec = replace(
                spec, image=await self._runtime.build_image(environment.dockerfile, tell)
            )
        home = environment.home_folder
        inside = {p: text for p, text in environment.files.items() if not is_writable(p, home)}
        packages = environment.packages
        if not (packages.pip or packages.npm or packages.apt or inside):
            return spec, None
        python = await self._runtime.interpreter(spec.image)
        return spec, LayerRecipe(python=python, packages=packages, files=inside)

    def _refuse(self, environment: Environment) -> None:
        name, runtime = environment.name, self._runtime
        if not runtime.has_images and (environment.image or environment.dockerfile):
            use = "an E2B template" if runtime.has_templates else "the host's programs"
            raise InvalidRequest(
                f"environment {name!r}: {runtime.name} boxes use {use}, not an image;"
                " omit `environment`, or use docker"
            )
        if environment.template and not runtime.has_templates:
            raise InvalidRequest(
                f"environment {name!r} is an E2B template, and {runtime.name} boxes are made"
                " without: use the provider e2b"
            )
        if environment.pods and not runtime.has_pods:
            raise InvalidRequest(
                f"environment {name!r} says where its pods run, and {runtime.name} boxes are none:"
                " use the provider kubernetes"
            )
        if environment.network is not None and environment.network not in runtime.networks:
            raise InvalidRequest(
                f"environment {name!r}: {runtime.name} boxes cannot have the network"
                f" {environment.network!r}; use the docker runtime"
            )
        if environment.gpus and (why := gpus.too_few(runtime.gpus, environment.gpus.count)):
            raise InvalidRequest(f"environment {name!r} {why}")

    def _start(self, environment: Environment, spec: BoxSpec) -> None:
        name = environment.name
        build = _Build(self._clock())

        def tell(line: str) -> None:
            build.step = line[:100]
            if line.startswith(_PROGRESS):
                log.info("environment.building", environment=name, step=line[:200])

        async def work() -> BoxSpec:
            try:
                built = await self.build(environment, spec, tell)
            except SandboxError as exc:
                raise self._failing(name, exc) from exc
            except Exception as exc:
                log.exception("environment.build_broke", environment=name)
                broke = EnvironmentFailed(f"environment {name} could not be built: {exc!r}")
                raise self._failing(name, broke) from exc
            finally:
                del self._building[name]
            self._failed.pop(name, None)
            if build.step:
                took_s = round(self._clock() - build.began, 1)
                log.info("environment.built", environment=name, took_s=took_s)
            return built

        # In an empty context, without the log fields of the request that needs it.
        self._building[name] = build, asyncio.create_task(work(), context=Context())

    def _failing(self, name: str, error: SandboxError) -> SandboxError:
        """The error to tell until the next try."""
        before = self._failed.get(name)
        times = before.times + 1 if before else 1
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (times - 1))
        pause_s = round(pause_s * (0.5 + 0.5 * random.random()), 1)
        if isinstance(error, EnvironmentFailed):
            error.details["retry_after_s"] = pause_s
        self._failed[name] = _Failure(error, times, self._clock() + pause_s)
        log.warning("environment.failed", environment=name, error=error.message, retry_s=pause_s)
        return error


def box_spec(environment: Environment, spec: BoxSpec) -> BoxSpec:
    """The spec of a box, as far as nothing has to be built for it."""
    asked = environment.gpus
    return replace(
        spec,
        image=environment.image or spec.image,
        template=environment.template or spec.template,
        user=BoxUser(name=environment.user, home=environment.home_folder),
        env={**spec.env, **environment.env},
        files={
            path: text
            for path, text in environment.files.items()
            if is_writable(path, environment.home_folder)
        },
        setup=tuple(environment.setup),
        kernels=environment.kernels,
        gpus=None if asked is None else GpuRequest(count=asked.count, shared=asked.shared),
        pods=environment.pods or spec.pods,
    )


def is_writable(path: str, home: str = HOME) -> bool:
    """Whether a file is in a folder that every box has to itself. Others are part of a layer.

    Raises InvalidRequest for a path that is not absolute.
    """
    if not path.startswith("/") or posixpath.normpath(path) != path:
        raise InvalidRequest(f"the path {path!r} of a file is not absolute: write /workspace/…")
    return path.startswith((*_WRITABLE, f"{home}/"))


def explained(name: str, error: EnvironmentFailed | InvalidRequest) -> SandboxError:
    """The error with the name of the environment, and the end of the log in its message."""
    message = error.message
    if not message.startswith("environment "):
        message = f"environment {name}: {message}"
    kept = error.details.get("log") or []
    if kept:
        message += ": " + " | ".join(kept[-_SHOWN_LINES:])
    return type(error)(message, **error.details)


def _layer_of(recipe: LayerRecipe) -> Layer:
    return Layer(digest=recipe.digest, files=tuple(recipe.files), apt=recipe.packages.apt)
