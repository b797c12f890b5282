"""Runtimes by name, and the choice of one for this machine. A package adds a runtime with an entry
point in the group agent_sandbox.runtimes: a function that takes RuntimeOptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk import plugins
from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_sdk.protocol.providers import SETUP
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.runtime.base import Enforcement, Runtime

AUTO = "auto"
"""Not a runtime: choose() picks one."""
_ANSWER_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Server settings that a runtime may need."""

    state_dir: Path | None = None
    """For files that must survive a restart."""
    docker_url: str | None = None
    engine_runtime: str | None = None
    """OCI runtime of the Docker engine: runsc, kata, …"""
    disk_folder: Path | None = None
    metrics: Metrics = NO_METRICS


@dataclass(frozen=True)
class ChosenRuntime:
    """A runtime that is open, under the name by which sessions ask for it."""

    name: str
    runtime: Runtime
    why: str
    enforcement: Enforcement


def make_runtime(name: str, options: RuntimeOptions) -> Runtime:
    """The runtime of that name; whether it works here shows on first use. Raises InvalidRequest for
    an unknown name, RuntimeUnavailable if a library is missing."""
    try:
        factory: Callable[[RuntimeOptions], Runtime] = plugins.load(plugins.RUNTIMES, name)
    except LookupError:
        raise InvalidRequest(unknown(name)) from None
    except ImportError as exc:
        message = f"the {name} runtime needs `pip install agent-sandbox[{name}]` ({exc})"
        raise RuntimeUnavailable(message) from exc
    return factory(options)


def unknown(name: str) -> str:
    """The error message for an unknown runtime; empty if the name is known."""
    if name == AUTO or any(found.name == name for found in plugins.own(plugins.RUNTIMES)):
        return ""
    there = installed()
    if name in there:
        return ""
    if name in SETUP:
        return f"{name!r} is not installed: {SETUP[name]}"
    near = did_you_mean(name, [*there, *SETUP])
    known = f"installed are {', '.join([AUTO, *there])}"
    return f"unknown runtime {name!r}: {known}{f'; {near}' if near else ''}"


def installed() -> list[str]:
    """The names of the runtimes that can be made here."""
    return plugins.names(plugins.RUNTIMES)


async def choose(name: str, options: RuntimeOptions) -> tuple[Runtime, str]:
    """A runtime, and the reason for the choice as text.

    auto is docker if an engine answers, else bubblewrap. With an engine_runtime it is always
    docker: falling back would lose the isolation asked for. Raises InvalidRequest for an unknown
    name, RuntimeUnavailable if docker is required and cannot be used.
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
    """runtime.about(). If it does not answer in time, the runtime is closed."""
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
