"""Checks how well boxes are confined: measured inside a new box, and by the versions of the engine
or of bubblewrap."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, SessionLost
from sandbox_server.doctor.confinement import Promised, judge, judge_memory
from sandbox_server.doctor.findings import Finding, State
from sandbox_server.doctor.versions import (
    Component,
    examine_bubblewrap,
    examine_gvisor,
    examine_version,
)
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.runtime.bubblewrap import host
from sandbox_server.runtime.bubblewrap.mounts import PLACES
from sandbox_server.runtime.registry import choose
from sandbox_server.settings import Settings

if TYPE_CHECKING:
    from sandbox_server.runtime.docker import DockerRuntime

_PROBE_S = 120.0
_VERSION_S = 10.0
_NAMESPACES = {"mount": "mnt", "cgroup": "cgroup", "uts": "uts", "ipc": "ipc", "user": "user",
               "pid": "pid", "net": "net"}  # fmt: skip


async def examine_security(settings: Settings) -> AsyncGenerator[Finding]:
    """Make a box of each provider as the server would, measure it from inside, and destroy it."""
    for name in settings.provider_names():
        async with contextlib.aclosing(_of_provider(name, settings)) as findings:
            async for finding in findings:
                yield finding


async def _of_provider(name: str, settings: Settings) -> AsyncGenerator[Finding]:
    try:
        runtime, why = await choose(name, settings.runtime_options())
    except SandboxError as exc:
        yield _no_box(exc)
        return
    async with runtime:
        try:
            yield Finding("runtime", State.OK, why)
            async for finding in _examine(runtime, settings):
                yield finding
        except SandboxError as exc:
            yield _no_box(exc)


def _no_box(exc: SandboxError) -> Finding:
    fix = "run `sandbox doctor` to see what is missing"
    return Finding("box", State.FAILED, exc.message, fix=fix)


async def _examine(runtime: Runtime, settings: Settings) -> AsyncGenerator[Finding]:
    gvisor = False
    if runtime.name == "docker":
        from sandbox_server.runtime.docker import DockerRuntime

        assert isinstance(runtime, DockerRuntime)
        gvisor = runtime.gvisor
        for finding in await _of_engine(runtime, settings):
            yield finding
    else:
        yield await asyncio.to_thread(_of_bubblewrap)
    # If this process is killed, no other one adopts the box: it must end soon by itself.
    spec = replace(settings.box_spec(f"doctor-{uuid.uuid4().hex[:12]}"), deadman_s=2 * _PROBE_S)
    if spec.network not in runtime.networks:
        spec = replace(spec, network="none")
    promised = Promised(
        runtime=runtime.name,
        gvisor=gvisor,
        network=spec.network,
        limits=spec.limits,
        lacking=(await runtime.enforcement()).missing(),
        host_namespaces=dict(_own_namespaces()),
    )
    async with _fresh_box(runtime, spec) as agent:
        for finding in judge(await _facts(agent, promised), promised):
            yield finding
        yield judge_memory(await _memory(agent, promised.limits.memory_bytes), promised)


@contextlib.asynccontextmanager
async def _fresh_box(runtime: Runtime, spec: BoxSpec) -> AsyncIterator[BoxAgent]:
    box = await runtime.create(spec)
    try:
        async with box.agent() as agent:
            yield agent
    finally:
        await asyncio.shield(box.destroy())


async def _facts(agent: BoxAgent, promised: Promised) -> dict[str, Any]:
    """Run inside.py in the box. Raises RuntimeUnavailable if it prints no facts."""
    limits = promised.limits
    # Without a pids limit, the fork test would not stop before the box breaks.
    pids = 0 if "pids" in promised.lacking else limits.pids
    words = [str(pids), str(limits.cpus), str(limits.disk_bytes), *PLACES.values()]
    result = await agent.run(_command("facts", *words), stdin=_program(), timeout_s=_PROBE_S)
    try:
        facts: dict[str, Any] = json.loads(result.stdout)
        return facts
    except ValueError:
        output = " ".join(result.output.split())[-300:]
        raise RuntimeUnavailable(f"the box could not be examined: {output}") from None


async def _memory(agent: BoxAgent, limit: int) -> int | None:
    """How many bytes a process got. None if the box, or the whole command, ended with it."""
    try:
        result = await agent.run(
            _command("memory", str(limit)), stdin=_program(), timeout_s=_PROBE_S
        )
        return int(json.loads(result.stdout)["memory"])
    except (SessionLost, ValueError):
        return None


def _command(*words: str) -> str:
    return f"exec python3 - {shlex.join(words)}"


def _program() -> bytes:
    return files("sandbox_server.doctor").joinpath("inside.py").read_bytes()


def _own_namespaces() -> Iterator[tuple[str, str]]:
    for name, link in _NAMESPACES.items():
        with contextlib.suppress(OSError):
            yield name, os.readlink(f"/proc/self/ns/{link}")


async def _of_engine(runtime: DockerRuntime, settings: Settings) -> list[Finding]:
    """Check the versions of an engine and its components."""
    info, components = await _about(runtime.url)
    local = runtime.url.startswith("unix:") and info.get("Name") == os.uname().nodename
    # With gVisor, runc makes no boxes; it only prepares their image.
    weak = State.WARNING if runtime.gvisor else State.FAILED
    found: list[Finding] = []
    known = {str(each.get("Name", "")).lower(): each for each in components}
    for name in ("engine", "containerd", "runc"):
        each = known.get(name, {})
        part = Component(
            name=name,
            version=str(each.get("Version", "")),
            commit=str((each.get("Details") or {}).get("GitCommit", "")),
            system=str(info.get("OperatingSystem", "")),
            local=local,
        )
        found += examine_version(part, weak=weak)
    if runtime.gvisor:
        path = ((info.get("Runtimes") or {}).get(settings.docker_runtime) or {}).get("path", "")
        version = await asyncio.to_thread(_version, path) if local and path else ""
        found.append(examine_gvisor(version, datetime.now(UTC).date()))
    return found


async def _about(url: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`docker info`, and the components in `docker version`. Raises RuntimeUnavailable."""
    from sandbox_server.runtime.docker.engine import Endpoint, Engine

    engine = Engine(Endpoint.of(url))
    try:
        with engine.errors():
            version = await engine.client.version()
        return dict(await engine.info()), list(version.get("Components") or ())
    finally:
        await engine.close()


def _of_bubblewrap() -> Finding:
    path = host.bwrap_programs()[0].path
    setuid = bool(os.stat(path).st_mode & stat.S_ISUID) and Path(path).stat().st_uid == 0
    return examine_bubblewrap(_version(path), setuid=setuid)


def _version(program: str) -> str:
    """The first line of `program --version`; empty if it cannot be run."""
    found = shutil.which(program)
    if found is None:
        return ""
    try:
        done = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0]
