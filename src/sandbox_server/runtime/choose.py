"""Which runtime to use on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.base import Runtime

if TYPE_CHECKING:
    from sandbox_server.runtime.docker import DockerRuntime

RuntimeName = Literal["auto", "docker", "bubblewrap"]

_ANSWER_S = 2.0


async def choose(
    name: RuntimeName,
    *,
    docker_url: str | None = None,
    engine_runtime: str | None = None,
    disk_folder: Path | None = None,
    state_dir: Path | None = None,
) -> tuple[Runtime, str]:
    """A runtime and the reason for it, in words for a log.

    auto is docker where an engine answers, else bubblewrap; with an engine_runtime, which is wanted
    for its isolation, it is docker and nothing less. A runtime that is asked for by its name
    is not tried out here: it says itself what it lacks when it is used. docker_url, engine_runtime
    and disk_folder are for docker, state_dir is for bubblewrap. Raises RuntimeUnavailable where
    docker is asked for and cannot be used from here at all.
    """
    if name == "bubblewrap":
        return _bubblewrap(state_dir), "bubblewrap, as configured"
    try:
        docker = _docker(docker_url, engine_runtime, disk_folder)
        if name == "docker":
            return docker, "docker, as configured"
        version = await _version(docker)
    except RuntimeUnavailable as exc:
        if name == "docker":
            raise
        if engine_runtime:
            raise RuntimeUnavailable(
                f"SANDBOX_DOCKER_RUNTIME={engine_runtime} needs docker boxes: {exc.message}"
            ) from exc
        return _bubblewrap(state_dir), f"bubblewrap, because {exc.message}"
    return docker, f"docker, because an engine answers: {version} at {docker.url}"


async def _version(docker: DockerRuntime) -> str:
    """The version of the engine that answers; where none does, docker is closed."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await docker.version()
    except TimeoutError:
        await docker.close()
        message = f"no Docker engine answered within {_ANSWER_S:g} s at {docker.url}"
        raise RuntimeUnavailable(message) from None
    except BaseException:
        await docker.close()
        raise


def _docker(url: str | None, engine_runtime: str | None, disk_folder: Path | None) -> DockerRuntime:
    try:
        from sandbox_server.runtime.docker.runtime import DISK_FOLDER, DockerRuntime
    except ImportError as exc:
        message = f"the docker runtime needs `pip install agent-sandbox[docker]` ({exc})"
        raise RuntimeUnavailable(message) from exc
    return DockerRuntime(url, engine_runtime=engine_runtime, disk_folder=disk_folder or DISK_FOLDER)


def _bubblewrap(state_dir: Path | None) -> Runtime:
    from sandbox_server.runtime.bubblewrap import BubblewrapRuntime

    return BubblewrapRuntime(state_dir=state_dir)
