"""Finds the strictest setup for boxes that works on this machine, by making a trial box."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime import hidden, loop_disk
from sandbox_server.runtime.base import BoxSpec, Limits
from sandbox_server.runtime.bubblewrap import cgroups, host, keeper, seccomp_bpf
from sandbox_server.runtime.bubblewrap.host import Program
from sandbox_server.runtime.bubblewrap.mounts import WARDEN
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.bubblewrap.state import StateFolder

_TRIAL = BoxSpec(owner="", limits=Limits(disk_bytes=16 << 20, inodes=1000))
_TRIAL_S = 20.0


def find_setup(state: StateFolder) -> Setup:
    """The strictest setup that works. Blocks for a few tenths of a second.

    Raises RuntimeUnavailable, with the fix, if boxes cannot be made here.
    """
    host.require_bash()
    state.prepare()
    facts = _facts(state)
    reasons: dict[str, list[str]] = {}
    # Every program in the strictest way before any in a weaker one: a bwrap with libraries of its
    # own, in PATH, does not start where the launcher has mounted it alone.
    ways = [_candidates(replace(facts, bwrap=each), state) for each in host.bwrap_programs()]
    for candidate in (each for way in zip_longest(*ways) for each in way if each is not None):
        failed = reasons.setdefault(candidate.bwrap.path, [])
        setup = _with_reason(candidate, failed[-1]) if failed else candidate
        why = _try(setup, state)
        if not why:
            return replace(setup, groups=replace(cgroups.find(), prefix=state.group_prefix))
        failed.append(why)
    text = host.explain("; ".join(f"{path}: {failed[0]}" for path, failed in reasons.items()))
    raise RuntimeUnavailable(f"bubblewrap does not work here: {text}")


def _facts(state: StateFolder) -> Setup:
    """What all candidates have in common."""
    links, folders = host.root_entries()
    try:
        seccomp, no_seccomp = seccomp_bpf.program(), ""
    except ValueError as exc:
        seccomp, no_seccomp = b"", str(exc)
    chosen = host.choose_python()
    return Setup(
        bwrap=Program("", {}),
        python=chosen,
        shared=str(state.shared(chosen.executable)),
        uid=os.getuid(),
        uids=_uids(),
        nproc_per_namespace=_kernel() >= (5, 14),
        seccomp=seccomp,
        no_seccomp=no_seccomp,
        links=links,
        folders=folders,
        etc=host.etc_entries(),
        has_python_command=Path("/usr/bin/python").exists(),
        hidden_files=host.proc_entries(hidden.PROC_FILES),
        hidden_folders=host.proc_entries(hidden.PROC_FOLDERS),
    )


def _uids() -> range | None:
    """None if we are not root, or root of a user namespace without other uids."""
    if os.geteuid() != 0:
        return None
    return host.uid_range(Path("/proc/self/uid_map").read_text()) or None


def _kernel() -> tuple[int, ...]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def _candidates(facts: Setup, state: StateFolder) -> list[Setup]:
    """Setups to try, the strictest first."""
    sources = [facts.bwrap.path, facts.shared, facts.python.prefix or "/usr", str(state.path)]
    stage = host.stage_folder(sources)
    no_disk = loop_disk.obstacle(state.disks)
    if not stage:
        why = "no folder is free to mount it on"
        return [replace(facts, no_disk=no_disk or why, no_namespace=why)]
    staged = replace(facts, namespace="mount" if facts.uids else "user", stage=stage)
    with_disk = [] if no_disk else [staged]
    return [*with_disk, replace(staged, no_disk=no_disk), replace(facts, no_disk=no_disk)]


def _with_reason(setup: Setup, failed: str) -> Setup:
    """The setup, with the reason why the stricter one before it does not work."""
    no_namespace = "" if setup.namespace else failed
    return replace(setup, no_disk=setup.no_disk or failed, no_namespace=no_namespace)


def _try(setup: Setup, state: StateFolder) -> str:
    """Make a trial box. Returns why it does not run; empty if it does."""
    folder = state.new_box()
    try:
        with ExitStack() as held:
            box = keeper.prepare(setup, state, _TRIAL, folder, held)
            held.callback(box.discard)
            test = f"open('{WARDEN}/start.py')"
            box.plan["command"] = [setup.python.executable, "-I", "-S", "-c", test]
            done = subprocess.run(
                [*keeper.LAUNCHER, box.write_plan()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=keeper.ENVIRONMENT,
                timeout=_TRIAL_S,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as exc:
        shutil.rmtree(folder, ignore_errors=True)
        return str(exc)
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or f"exit {done.returncode}"
