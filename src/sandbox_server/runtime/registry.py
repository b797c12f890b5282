"""Runtimes by name, and which of them to use on this machine. A package adds one with an entry
point of the group agent_sandbox.runtimes: a function that takes RuntimeOptions and makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk import plugins
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.runtime.base import Runtime

AUTO = "auto"
"""Not a runtime: the best there is."""
_ANSWER_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """What a server knows that a runtime may need."""

    state_dir: Path | None = None
    """Where it may keep what has to outlive it."""
    docker_url: str | None = None
    engine_runtime: str | None = None
    """Of a Docker engine: runsc, kata, …"""
    disk_folder: Path | None = None


def make_runtime(name: str, options: RuntimeOptions) -> Runtime:
    """It is not tried out: it says itself what it lacks when it is used. Raises InvalidRequest for
    a name that nobody has, RuntimeUnavailable where a library is missing."""
    try:
        factory: Callable[[RuntimeOptions], Runtime] = plugins.load(plugins.RUNTIMES, name)
    except LookupError:
        raise InvalidRequest(unknown(name)) from None
    except ImportError as exc:
        message = f"the {name} runtime needs `pip install agent-sandbox[{name}]` ({exc})"
        raise RuntimeUnavailable(message) from exc
    return factory(options)


def unknown(name: str) -> str:
    """What to tell of a name that nobody has, or an empty text where somebody does."""
    if name == AUTO or any(found.name == name for found in plugins.own(plugins.RUNTIMES)):
        return ""
    installed = plugins.names(plugins.RUNTIMES)
    if name in installed:
        return ""
    return f"unknown runtime {name!r}: installed are {', '.join([AUTO, *installed])}"


async def choose(name: str, options: RuntimeOptions) -> tuple[Runtime, str]:
    """A runtime and the reason for it, in words for a log.

    auto is docker where an engine answers, else bubblewrap; with an engine_runtime, which is wanted
    for its isolation, it is docker and nothing less. Raises InvalidRequest for an unknown name, and
    RuntimeUnavailable where docker is asked for and cannot be used from here at all.
    """
    if name != AUTO:
        return make_runtime(name, options), f"{name}, as configured"
    try:
        docker = make_runtime("docker", options)
        engine = await _answering(docker)
    except RuntimeUnavailable as exc:
        if options.engine_runtime:
            raise RuntimeUnavailable(
                f"SANDBOX_DOCKER_RUNTIME={options.engine_runtime} needs docker boxes: {exc.message}"
            ) from exc
        return make_runtime("bubblewrap", options), f"bubblewrap, because {exc.message}"
    return docker, f"docker, because an engine answers: {engine}"


async def _answering(runtime: Runtime) -> str:
    """What makes the boxes, in a few words; where it does not answer, the runtime is closed."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await runtime.about()
    except TimeoutError:
        await runtime.close()
        message = f"{runtime!r} did not answer within {_ANSWER_S:g} s"
        raise RuntimeUnavailable(message) from None
    except BaseException:
        await runtime.close()
        raise
