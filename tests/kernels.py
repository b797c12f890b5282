"""Boxes with Jupyter kernels: those of the built-in environments, built once on a machine."""

import os
from pathlib import Path

from sandbox_server.environments.builds import Builds
from sandbox_server.environments.layers import LayerStore
from sandbox_server.registry.environments import Environment
from sandbox_server.registry.folder import read_registry
from sandbox_server.runtime.base import BoxSpec, Runtime

BUILD_S = 400.0


def layer_cache() -> Path:
    """Kept beyond a run of the tests: the layers are large."""
    return Path(os.environ.get("SANDBOX_CACHE") or Path.home() / ".cache" / "agent-sandbox")


def built_in(name: str) -> Environment:
    """A built-in environment; Node with an npm package besides."""
    found = read_registry(None).environments[name]
    if name != "Node":
        return found
    packages = found.packages.model_copy(update={"npm": ("is-number",)})
    return found.model_copy(update={"packages": packages})


async def spec_of(environment: str, runtime: Runtime) -> BoxSpec:
    """The spec of a box of a built-in environment."""
    found = built_in(environment)
    async with Builds(runtime, LayerStore(layer_cache(), runtime.name)) as builds:
        return await builds.build(found, BoxSpec(owner=""), print)
