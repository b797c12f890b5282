"""Runtimes by name, and the choice of one for this machine. A package adds a runtime with an entry
point in the group agent_sandbox.runtimes: a function that takes RuntimeOptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sandbox_sdk import plugins
from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.runtime.base import Enforcement, Limits, Runtime

AUTO = "auto"
"""Not a runtime: choose() picks one."""
_ANSWER_S = 2.0


StreamWay = Literal["auto", "exec", "tcp"]
"""How streams reach wardens in pods: TCP where that works, else exec; exec alone; TCP or not at
all."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Settings of the kubernetes runtime."""

    kubeconfig: str | None = None
    namespace: str | None = None
    runtime_class: str | None = None
    """gVisor's or Kata's, where the cluster has one."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    priority_class: str | None = None
    pull_secret: str | None = None
    requests: float = 0.25
    """The part of its limits that a pod requests: nodes are filled up by requests."""
    warm_pool: int = 0
    """Pods that each warm pool of kubernetes-sigs/agent-sandbox has; 0 for a cluster without it."""
    warm_limits: Limits | None = None
    """The limits of boxes that come from these."""
    placement_s: float = 15.0
    """How long a pod may wait for a node: an autoscaler sees only pods that wait."""
    eviction_s: float = 30.0
    """How long a pod lives on that somebody evicts or deletes."""
    shared: bool = False
    """Whether other servers can take its pods over."""
    stream: StreamWay = "auto"

    @property
    def gvisor(self) -> bool:
        name = self.runtime_class or ""
        return "gvisor" in name or "runsc" in name


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Server settings that a runtime may need."""

    state_dir: Path | None = None
    """For files that must survive a restart."""
    docker_url: str | None = None
    engine_runtime: str | None = None
    """OCI runtime of the Docker engine: runsc, kata, …"""
    disk_folder: Path | None = None
    e2b_api_key: str | None = field(default=None, repr=False)
    e2b_api_url: str | None = None
    e2b_sandbox_url: str | None = None
    e2b_domain: str | None = None
    e2b_template: str | None = None
    kubernetes: ClusterOptions = field(default_factory=ClusterOptions)
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
    near = did_you_mean(name, there)
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
    except BaseException as exc:
        await runtime.close()
        if not isinstance(exc, TimeoutError):
            raise
        message = f"{runtime!r} did not answer within {_ANSWER_S:g} s"
        raise RuntimeUnavailable(message) from None
