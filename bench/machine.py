"""What the numbers hold for: the machine, in general terms, and the versions of what was asked."""

from __future__ import annotations

import os
import platform
import re

import aiodocker

from bench import processes
from bench.memory import total_mb
from bench.stage import GVISOR_NAME, Stage


def host() -> dict[str, str]:
    return {
        "kernel": f"Linux {_numbers(platform.release())}",
        "architecture": platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{total_mb() / 1000:.0f} GB",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
    }


async def describe(stage: Stage) -> dict[str, str]:
    about = {**host(), "bash": _numbers(await _version("bash"))}
    if stage.docker is not None:
        about |= await _engine(stage.docker)
    if "bubblewrap" in stage.runtimes:
        about["bubblewrap"] = _numbers(await _version("bwrap"))
    return about


async def _engine(docker: aiodocker.Docker) -> dict[str, str]:
    info = await docker.system.info()
    about = {
        "Docker": _numbers(str(info.get("ServerVersion", ""))),
        "cgroups": f"version {info.get('CgroupVersion', '1')}",
    }
    if gvisor := info.get("Runtimes", {}).get(GVISOR_NAME):
        options = " ".join(gvisor.get("runtimeArgs") or [])
        about["gVisor"] = f"{_numbers(await _version('runsc'))} {options}".strip()
    return about


async def _version(program: str) -> str:
    try:
        return (await processes.output_of(program, "--version")).decode()
    except (OSError, processes.ProgramFailed):
        return ""


def table(about: dict[str, str]) -> list[str]:
    """The last lines of a page: what it was measured on."""
    rows = [f"| {name} | {value} |" for name, value in about.items()]
    return ["| machine | |", "| --- | --- |", *rows, ""]


def _numbers(version: str) -> str:
    """The version itself, without what a distribution or a machine's owner has added."""
    found = re.search(r"\d+(?:\.\d+)+|\d+\.\d+~?\d+", version.replace("0.0~", "0.0."))
    return found[0] if found else "unknown"
