"""Which runtime to use on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.base import Runtime

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

    auto is docker where an engine answers, else bubblewrap. A runtime that is asked for by its name
    is not tried out here: it says itself what it lacks when it is used. docker_url, engine_runtime
    and disk_folder are for docker, state_dir is for bubblewrap. Raises RuntimeUnavailable where
    docker is asked for and its client library is not installed.
    """
    if name == "bubblewrap":
        return _bubblewrap(state_dir), "bubblewrap, as configured"
    try:
        docker = _docker(docker_url, engine_runtime, disk_folder)
    except RuntimeUnavailable as exc:
        if name == "docker":
            raise
        return _bubblewrap(state_dir), f"bubblewrap, because {exc.message}"
    if name == "docker":
        return docker, "docker, as configured"
    why_not = await _why_no_answer(docker)
    if why_not:
        await docker.close()
        return _bubblewrap(state_dir), f"bubblewrap, because {why_not}"
    return docker, f"docker, because an engine answers: {docker!r}"


async def _why_no_answer(docker: Runtime) -> str:
    from sandbox_server.runtime.docker import DockerRuntime

    assert isinstance(docker, DockerRuntime)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await docker.version()
    except RuntimeUnavailable as exc:
        return exc.message
    except TimeoutError:
        return f"no Docker engine answered within {_ANSWER_S:g} s"
    return ""


def _docker(url: str | None, engine_runtime: str | None, disk_folder: Path | None) -> Runtime:
    try:
        from sandbox_server.runtime.docker import DockerRuntime
    except ImportError as exc:
        message = f"the docker runtime needs `pip install agent-sandbox[docker]` ({exc})"
        raise RuntimeUnavailable(message) from exc
    if disk_folder is None:
        return DockerRuntime(url, engine_runtime=engine_runtime)
    return DockerRuntime(url, engine_runtime=engine_runtime, disk_folder=disk_folder)


def _bubblewrap(state_dir: Path | None) -> Runtime:
    from sandbox_server.runtime.bubblewrap import BubblewrapRuntime

    return BubblewrapRuntime(state_dir=state_dir)
