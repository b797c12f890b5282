"""Checks whether this machine has what a server needs, with the fix for what is missing."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_server.api.server import bound
from sandbox_server.doctor.findings import Finding, State
from sandbox_server.runtime import disk_pool, loop_disk
from sandbox_server.runtime.bubblewrap import cgroups, host
from sandbox_server.runtime.bubblewrap.probe import find_setup
from sandbox_server.runtime.bubblewrap.state import StateFolder
from sandbox_server.runtime.registry import make_runtime
from sandbox_server.settings import Settings

if TYPE_CHECKING:
    from sandbox_server.runtime.docker.engine import Engine

_ANSWER_S = 10.0
_ROOM_BYTES = 2 << 30
_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"

_ELSEWHERE = {
    "e2b": "set SANDBOX_E2B_API_KEY (docs/boxes/e2b.md)",
    "kubernetes": "set KUBECONFIG (docs/kubernetes.md)",
}


async def examine(settings: Settings, *, makes_boxes: bool) -> AsyncGenerator[Finding]:
    """Run all checks, one finding each.

    makes_boxes: whether boxes are made on this machine, not by a remote server.
    """
    wants = settings.provider_names() if makes_boxes else ()
    yield _python()
    yield await asyncio.to_thread(_namespaces)
    yield await asyncio.to_thread(_groups)
    yield _disk(settings.state_folder())
    if makes_boxes and settings.checkpoints == "folder":
        yield await asyncio.to_thread(_copies, settings)
    if makes_boxes:
        yield await asyncio.to_thread(_volumes, settings)
        yield _previews(settings)
    answers = False
    async for finding in _docker(settings, wants):
        answers = answers or finding.state is State.OK
        yield finding
    needed = "bubblewrap" in wants or ("auto" in wants and not answers)
    yield await asyncio.to_thread(_bubblewrap, settings, needed=needed)
    for name in ("e2b", "kubernetes"):
        if name in wants:
            yield await _elsewhere(settings, name)
    if url := settings.redis():
        yield await _redis(url)


def _lack(*, needed: bool) -> State:
    return State.MISSING if needed else State.OPTIONAL


def _python() -> Finding:
    return Finding("python", State.OK, f"{platform.python_version()} at {sys.executable}")


def _namespaces() -> Finding:
    """Try unshare: no single kernel setting is conclusive."""
    name, kernel = "user namespaces", f"{platform.system()} {platform.release()}"
    tried = subprocess.run([sys.executable, "-c", _UNSHARE], capture_output=True, check=False)
    if tried.returncode == 0:
        return Finding(name, State.OK, kernel)
    told = f"{kernel} does not allow them here"
    return Finding(name, State.OPTIONAL, told, fix=host.explain("unshare failed"))


def _groups() -> Finding:
    name, found = "control groups", cgroups.find()
    lacking = [each for each in ("memory", "pids", "cpu") if each not in found.parents]
    if not lacking:
        burst = "with CPU burst" if cgroups.has_burst(found) else "no CPU burst: needs Linux 5.14"
        return Finding(name, State.OK, f"version {found.version}, writable, {burst}")
    return Finding(
        name,
        State.OPTIONAL,
        f"embedded boxes are not limited in {', '.join(lacking)}",
        fix="run the server as root, or in a delegated group: systemd-run --user --scope -p"
        " Delegate=yes sandbox serve",
    )


def _disk(folder: Path) -> Finding:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free
    told = f"{free / (1 << 30):.1f} GiB free for {folder}"
    if free >= _ROOM_BYTES and os.access(there, os.W_OK):
        return Finding("disk", State.OK, told)
    fix = f"make {there} writable, with 2 GiB free, or set SANDBOX_STATE_DIR to such a place"
    return Finding("disk", State.MISSING, told, fix=fix)


def _copies(settings: Settings) -> Finding:
    name = "disk copies"
    why = disk_pool.outlook(settings.state_folder(), wanted=settings.disk_pool)
    if not why:
        return Finding(name, State.OK, "a checkpoint or fork copies the disk of a box at no cost")
    told = f"checkpoints are taken file by file: {why}"
    fix = "run the server as root, with xfsprogs installed"
    return Finding(name, State.OPTIONAL, told, fix=fix)


def _volumes(settings: Settings) -> Finding:
    name, fix = "volumes", "run the server as root, with e2fsprogs installed"
    folder = settings.state_folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if os.geteuid() != 0:
        told = "only in embedded boxes, and their sizes are not enforced"
        return Finding(name, State.OPTIONAL, told, fix=fix)
    if why := loop_disk.obstacle(there):
        return Finding(name, State.OPTIONAL, f"there are none: {why}", fix=fix)
    return Finding(name, State.OK, "each has a disk of its own, whose size is enforced")


def _previews(settings: Settings) -> Finding:
    name, fix = "previews", "choose another port with SANDBOX_PREVIEW_PORT"
    if not settings.previews:
        return Finding(name, State.OPTIONAL, "SANDBOX_PREVIEWS is off")
    port = settings.previews_port(settings.listening_port())
    try:
        bound(settings.host, port).close()
    except RuntimeUnavailable:
        told = f"port {port} is taken, by a server that runs or by another program"
        return Finding(name, State.OPTIONAL, told, fix=fix)
    url = settings.preview_url or f"http://localhost:{port or '…'}"
    return Finding(name, State.OK, f"a server would serve them below {url}")


async def _docker(settings: Settings, wants: Collection[str]) -> AsyncGenerator[Finding]:
    try:
        from sandbox_server.runtime.docker.enforcement import obstacle_to_burst
        from sandbox_server.runtime.docker.engine import Endpoint, Engine

        engine = Engine(Endpoint.of())
    except ImportError as exc:
        fix = "pip install 'agent-sandbox[docker]'"
        state = _lack(needed="docker" in wants)
        yield Finding("docker engine", state, str(exc), fix=fix)
        return
    except SandboxError as exc:
        yield _no_engine(exc.message, needed="docker" in wants)
        return
    try:
        async with asyncio.timeout(_ANSWER_S):
            told = f"{await engine.version()} at {engine.endpoint.url}"
            info = await engine.info()
        if why := obstacle_to_burst(info, unix_socket=bool(engine.endpoint.path)):
            told += f", no CPU burst: {why}"
        yield Finding("docker engine", State.OK, told)
        yield await _image(engine, settings.image, needed="docker" in wants or "auto" in wants)
        yield _gvisor(info, settings.docker_runtime or "")
    except (SandboxError, TimeoutError) as exc:
        yield _no_engine(str(exc) or "no answer", needed="docker" in wants)
    finally:
        await engine.close()


async def _elsewhere(settings: Settings, name: str) -> Finding:
    """A runtime whose boxes are not on this machine."""
    try:
        async with (
            asyncio.timeout(_ANSWER_S),
            make_runtime(name, settings.runtime_options()) as runtime,
        ):
            return Finding(name, State.OK, await runtime.about())
    except (SandboxError, TimeoutError) as exc:
        return Finding(name, State.MISSING, str(exc) or "no answer", fix=_ELSEWHERE[name])


def _no_engine(why: str, *, needed: bool) -> Finding:
    fix = "install and start Docker (apt install docker.io), or set DOCKER_HOST"
    return Finding("docker engine", _lack(needed=needed), why, fix=fix)


async def _image(engine: Engine, image: str, *, needed: bool) -> Finding:
    from sandbox_server.runtime.docker.build import built_from, dockerfile

    name, found = "image", await built_from(engine, image)
    if found is None:
        told = f"{image} is not on this engine"
        fix = "sandbox image build" if image.startswith("sandbox-") else f"docker pull {image}"
        return Finding(name, _lack(needed=needed), told, fix=fix)
    if found and found != hashlib.sha256(dockerfile().encode()).hexdigest():
        told = f"{image} was built from another version of its Dockerfile"
        return Finding(name, State.OPTIONAL, told, fix="sandbox image build")
    return Finding(name, State.OK, image)


def _gvisor(info: dict[str, object], wanted: str) -> Finding:
    runtimes = info.get("Runtimes")
    name = wanted or "runsc"
    if isinstance(runtimes, dict) and name in runtimes:
        use = "in use" if wanted else f"for SANDBOX_DOCKER_RUNTIME={name}"
        told = f"{name}, {use}, {_platform(runtimes[name].get('runtimeArgs') or [])}"
        return Finding("gvisor", State.OK, told)
    return Finding(
        "gvisor",
        _lack(needed=bool(wanted)),
        f"the engine has no runtime {name}",
        fix='install runsc, add {"runtimes": {"runsc": {"path": "/usr/bin/runsc"}}} to'
        " /etc/docker/daemon.json and restart the engine",
    )


def _platform(arguments: list[str]) -> str:
    """How gVisor intercepts system calls, which decides how fast a box is."""
    for argument in arguments:
        if argument.lstrip("-").startswith("platform="):
            chosen = argument.partition("=")[2]
            slow = " (systrap is faster, where this runsc has it)" if chosen == "ptrace" else ""
            return f"platform {chosen}{slow}"
    return "its default platform"


def _bubblewrap(settings: Settings, *, needed: bool) -> Finding:
    """Make a trial box."""
    try:
        setup = find_setup(StateFolder(settings.state_folder()))
    except SandboxError as exc:
        return Finding(
            "bubblewrap",
            _lack(needed=needed),
            "embedded boxes cannot be made here",
            fix=exc.message,
        )
    lacking = ", ".join(setup.enforcement().missing())
    told = f"{setup.bwrap.path} makes boxes" + (f"; not limited in: {lacking}" if lacking else "")
    return Finding("bubblewrap", State.OK, told)


async def _redis(url: str) -> Finding:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    place = url.rpartition("@")[2]
    try:
        async with asyncio.timeout(_ANSWER_S), Redis.from_url(url) as client:
            version = (await client.info("server"))["redis_version"]
    except (RedisError, OSError, ValueError, TimeoutError) as exc:
        fix = "start Redis, or correct REDIS_URL (REDIS_HOST and REDIS_PORT)"
        return Finding("redis", State.MISSING, f"{place} does not answer: {exc}", fix=fix)
    return Finding("redis", State.OK, f"{version} at {place}")
