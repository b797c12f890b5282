"""Evaluates the facts measured inside a box. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox_server.doctor.findings import Finding, State
from sandbox_server.runtime.base import Limits

Facts = Mapping[str, Any]

_MIB = 1 << 20
_NONE, _BRIDGE = "none", "bridge"
_OVERRIDDEN = "boxes are not configured like this: check what overrides the engine's defaults"
_GVISORS_OWN = {
    "unshare user", "unshare mount", "unshare cgroup", "io_uring_setup", "syslog"
}  # fmt: skip
"""Calls that gVisor's own kernel handles; they do not reach the host's."""
_GVISORS_DEVICES = {"fuse", "net"}


@dataclass(frozen=True, kw_only=True)
class Promised:
    """The configured limits of a box, and those the runtime does not enforce."""

    runtime: str
    gvisor: bool = False
    network: str = _NONE
    limits: Limits = field(default_factory=Limits)
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Enforcement.missing()."""
    host_namespaces: Mapping[str, str] = field(default_factory=dict)
    """Those of this process; empty if boxes run on another kernel."""


def judge(facts: Facts, promised: Promised) -> list[Finding]:
    """All findings about the confinement of a box, except its memory limit."""
    return [finding for part in _PARTS for finding in part(facts, promised)]


def judge_memory(reached: int | None, promised: Promised) -> Finding:
    """reached: how many bytes a process got; None if the box ended with it."""
    limit = promised.limits.memory_bytes
    if reached is None:
        held, told = True, f"a process above {_mib(limit)} ends the box as a whole"
    else:
        held, told = reached <= limit + 32 * _MIB, f"a process got {_mib(reached)} of {_mib(limit)}"
    return _limit("memory limit", "memory", held, told, promised)


def _found(
    name: str, good: object, told: str, *, bad: str = "", fix: str = "", weak: State = State.FAILED
) -> Finding:
    if good:
        return Finding(name, State.OK, told)
    return Finding(name, weak, bad or told, fix=fix)


def _limit(name: str, field_: str, held: bool, told: str, promised: Promised) -> Finding:
    """A limit that does not hold is a failure, or a warning if the runtime reports it missing."""
    reported = promised.lacking.get(field_, "")
    if held:
        return Finding(name, State.OK, told)
    if reported:
        fix = "see `sandbox doctor`, or choose another runtime"
        return Finding(name, State.WARNING, f"{told}: {reported}", fix=fix)
    fix = "the server reports this limit as enforced, but it is not: check the control groups"
    return Finding(name, State.FAILED, told, fix=fix)


def _user(facts: Facts, promised: Promised) -> Iterator[Finding]:
    ids = {*facts["uid"], *facts["gid"], *facts["groups"]}
    mapped = facts["uid_map"]
    same = len(mapped) >= 3 and mapped[0] == mapped[1] and not promised.gvisor
    outside = ", which is the same user on the host" if same else ", another user on the host"
    yield _found(
        "user",
        0 not in ids and len(ids) == 1,
        f"uid {facts['uid'][0]}{outside}",
        bad=f"users and groups {sorted(ids)}",
        fix=f"commands must run as one unprivileged user; {_OVERRIDDEN}",
    )


def _rights(facts: Facts, _: Promised) -> Iterator[Finding]:
    caps = {name: value for name, value in facts["status"].items() if name.startswith("Cap")}
    held = {name: value for name, value in caps.items() if int(value, 16)}
    yield _found(
        "capabilities",
        caps and not held,
        "none, in any set",
        bad=f"{held or 'cannot be read'}",
        fix=f"boxes drop all capabilities; {_OVERRIDDEN}",
    )
    yield _found(
        "no new privileges",
        facts["no_new_privs"] == 1,
        "set",
        bad="not set: setuid programs run with their owner's privileges",
        fix=f"boxes set no-new-privileges; {_OVERRIDDEN}",
    )
    lending = [each["path"] for each in facts["setuid"] if not each["nosuid"]]
    powerless = facts["no_new_privs"] == 1
    yield _found(
        "setuid programs",
        powerless or not lending,
        f"{len(facts['setuid'])} found, without effect",
        bad=f"run with their owner's privileges: {', '.join(lending[:5])}",
        fix="remove the bit in the image: chmod a-s",
    )


def _kernel(facts: Facts, promised: Promised) -> Iterator[Finding]:
    filtered = facts["seccomp"] == 2 or facts["status"].get("Seccomp") == "2"
    if promised.gvisor:
        yield _found("seccomp", True, "not needed: system calls go to gVisor's own kernel")
    else:
        lacking = promised.lacking.get("syscalls", "")
        yield _found(
            "seccomp",
            filtered,
            "system calls are filtered",
            bad=f"no filter{': ' if lacking else ''}{lacking}",
            fix="use an engine with seccomp, or an architecture that we have a filter for",
            weak=State.WARNING if lacking else State.FAILED,
        )
    allowed = set(facts["calls"]) - (_GVISORS_OWN if promised.gvisor else set())
    yield _found(
        "system calls",
        not allowed,
        "the dangerous ones are refused",
        bad=f"allowed: {', '.join(sorted(allowed))}",
        fix=f"the seccomp filter of boxes refuses these; {_OVERRIDDEN}",
    )
    writes = facts["settings"]
    yield _found(
        "kernel settings",
        not writes,
        "read-only",
        bad=f"writable: {', '.join(writes)}",
        fix="mount /proc/sys and /sys read-only",
    )


def _namespaces(facts: Facts, promised: Promised) -> Iterator[Finding]:
    if promised.gvisor or not promised.host_namespaces:
        return
    host, own = promised.host_namespaces, facts["namespaces"]
    wanted = {"mount", "ipc", "pid", "net", "uts"}
    shared = sorted(name for name in wanted if own.get(name) == host.get(name))
    user = "user" in own and own["user"] != host.get("user")
    yield _found(
        "namespaces",
        not shared,
        f"its own: {', '.join(sorted(name for name in own if own[name] != host.get(name)))}",
        bad=f"shared with the host: {', '.join(shared)}",
        fix="remove engine options that share namespaces with the host",
    )
    if promised.runtime == "bubblewrap":
        yield _found("user namespace", user, "its own", fix="allow user namespaces")
    few = len(facts["processes"]) < 64 and 1 in facts["processes"]
    yield _found("processes seen", few, "its own", bad="those of the host", fix=_OVERRIDDEN)


def _files(facts: Facts, promised: Promised) -> Iterator[Finding]:
    places = ", ".join(facts["places"])
    yield _found(
        "writable paths",
        not facts["writable"],
        f"only {places}",
        bad=f"also {', '.join(facts['writable'][:8])}",
        fix="mount these read-only, or remove the VOLUME lines of the image",
    )
    loose = [path for path, room in facts["places"].items() if not room["nosuid"]]
    yield _found(
        "mounts",
        not loose or facts["no_new_privs"] == 1,
        f"{facts['mounts']}; what can be written is nosuid" if not loose else
        f"{facts['mounts']}; {', '.join(loose)} without nosuid, and no new privileges",
        bad=f"setuid files can be made in {', '.join(loose)}",
        fix=_OVERRIDDEN,
    )  # fmt: skip
    seen = facts["of_the_host"]
    yield _found(
        "host files",
        not seen,
        "no socket, key or memory of the host is accessible",
        bad=f"can be opened: {', '.join(seen)}",
        fix="do not mount these into boxes",
    )
    odd = [name for name in facts["devices"] if not (promised.gvisor and name in _GVISORS_DEVICES)]
    yield _found(
        "devices", not odd, "only the standard ones", bad=f"also {', '.join(odd)}", fix=_OVERRIDDEN
    )


def _network(facts: Facts, promised: Promised) -> Iterator[Finding]:
    others = [name for name in facts["interfaces"] if name != "lo"]
    if promised.network != _BRIDGE:
        through = (
            "" if promised.network == _NONE else f", and {promised.network} through the server"
        )
        if others and (reported := promised.lacking.get("network")):
            told = f"interfaces {', '.join(others)}: {reported}"
            fix = "look whether a box reaches what it should not"
            yield Finding("network", State.WARNING, told, fix=fix)
            return
        yield _found(
            "network",
            not others,
            f"none{through}",
            bad=f"interfaces {', '.join(others)}, although SANDBOX_NETWORK is {promised.network}",
            fix="check what attaches networks to containers",
        )
        return
    yield _found(
        "network",
        not facts["metadata"],
        f"{', '.join(others)}, because SANDBOX_NETWORK={promised.network}",
        bad="the cloud metadata service (169.254.169.254) can be reached: it hands out credentials",
        fix="iptables -I DOCKER-USER -d 169.254.169.254 -j DROP, or SANDBOX_NETWORK=none",
    )


def _limits(facts: Facts, promised: Promised) -> Iterator[Finding]:
    limits = promised.limits
    got, told = facts["pids"], "not counted"
    if got is not None:
        told = f"{got} more processes could be started; the limit is {limits.pids}"
    held = got is not None and got <= limits.pids
    yield _limit("process limit", "pids", held, told, promised)
    told = f"{facts['cpus']:.2f} of {limits.cpus:g} processors"
    # On a busy machine a box may stay below its limit even if that is not enforced.
    held = facts["cpus"] <= 1.5 * limits.cpus + 0.1 and "cpu" not in promised.lacking
    if promised.gvisor and not held:
        told = f"{told}, by gVisor's own clock, which counts waiting as CPU time"
        yield _found("cpu limit", False, told, fix="check with docker stats", weak=State.UNKNOWN)
    else:
        yield _limit("cpu limit", "cpu", held, told, promised)
    disk = facts["places"]["/workspace"]
    told = f"/workspace has {_mib(disk['bytes'])} of {_mib(limits.disk_bytes)}"
    yield _limit("disk limit", "disk", disk["bytes"] <= 1.05 * limits.disk_bytes, told, promised)
    yield _found(
        "file size limit",
        not facts["file_size"],
        "no file can be larger than its disk",
        bad="a file can claim to be larger than its disk",
        fix="limit the size of downloads on the client",
        weak=State.WARNING,
    )
    yield _found(
        "open files", facts["open_files"] <= limits.warden_files, f"{facts['open_files']}",
        fix=_OVERRIDDEN,
    )  # fmt: skip


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"


_PARTS: tuple[Callable[[Facts, Promised], Iterator[Finding]], ...] = (
    _user, _rights, _kernel, _namespaces, _files, _network, _limits,
)  # fmt: skip
