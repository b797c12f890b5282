"""Runtimes by name. A package adds one with an entry point of the group agent_sandbox.runtimes: a
function that takes RuntimeOptions and makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox_sdk import plugins
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.runtime.base import Runtime

AUTO = "auto"
"""Not a runtime: the best there is."""


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
