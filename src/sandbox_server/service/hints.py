"""Hints for commands that failed for want of something a sandbox does not have: network, root, a
daemon, room. Pure: judged from the exit code, the end of the output and the limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sandbox_sdk.integrations.presenting import shorter
from sandbox_sdk.protocol.models import WORKSPACE, Limits
from sandbox_server.policy.analyse import analyse
from sandbox_server.policy.bash.source import QUICK_WORK
from sandbox_server.policy.bash.syntax import TooMuch
from sandbox_server.policy.fields import command_name
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.runtime.base import Limits as BoxLimits

TAIL = 4096
"""How many bytes at the end of the output are looked at."""
_CURL_NO_HOST = 6
"""The exit code of curl where a host name cannot be resolved; with -s it says nothing else."""
_TOLD_BY_REASON = ("oom", "pids", "exhausted")

_NO_NETWORK = (
    "this sandbox has no network. Upload what is needed instead of downloading it; servers that run"
    " in the sandbox itself answer at localhost"
)
_WHEELS = (
    "upload wheels and run `pip install --no-index --find-links FOLDER NAME`, or ask for a sandbox"
    " whose image has the package"
)


@dataclass(frozen=True, kw_only=True)
class Wall:
    """Something a sandbox does not have: how programs say so, and what to do instead."""

    says: str
    """A regular expression for the end of the output."""
    hint: str | Callable[[Limits], str]
    offline: bool = False
    """Whether it is only true without a network."""
    proxied: bool = False
    """Whether it is only true where connections go through the server."""


def _missing(*names: str) -> str:
    """As bash says it, and sh."""
    return rf": (?:{'|'.join(map(re.escape, names))}): (?:command )?not found"


def _in_a_venv(limits: Limits) -> str:
    made = "install into a virtual environment: `python3 -m venv .venv`, then `.venv/bin/pip`"
    return f"{made}. There is no network: {_WHEELS}" if limits.network == "none" else made


def _full_disk(limits: Limits) -> str:
    tmp, home = _size(BoxLimits.tmp_bytes), _size(BoxLimits.home_bytes)
    return (
        f"a disk of this sandbox is full: {WORKSPACE} has {_size(limits.disk_bytes)}; /tmp ({tmp})"
        f" and the home ({home}) are in memory. `df -h` and `df -i` show which; delete what is not"
        f" needed, and keep large files in {WORKSPACE}"
    )


def _refused(limits: Limits) -> str:
    if limits.network == "open":
        return (
            "this sandbox can reach public hosts alone, not private or local addresses. Servers"
            " that run in the sandbox itself answer at localhost"
        )
    allowed = shorter(limits.network_allow, chars=600) or "nothing"
    return (
        f"the network of this sandbox refused that. It can reach: {allowed}. Use one of these, or"
        " ask the user to have the host allowed"
    )


WALLS = (
    Wall(
        says=r"(?s)fork.{0,200}Resource temporarily unavailable|spawn \S+ EAGAIN"
        r"|can't start new thread",
        hint=lambda limits: (
            f"the sandbox is at its limit of {limits.pids} processes and threads. End some"
            " (`ps aux`, `kill`), or start fewer at once"
        ),
    ),
    Wall(
        says=r"(?m)Cannot allocate memory|^MemoryError",
        hint=lambda limits: (
            f"the sandbox is at its limit of {_size(limits.memory_bytes)} of memory, /tmp and the"
            " home included. Use less at once: smaller chunks, fewer processes"
        ),
    ),
    Wall(says=r"No space left on device|ENOSPC", hint=_full_disk),
    Wall(
        says=r"Cannot connect to the Docker daemon|" + _missing("docker", "podman"),
        hint="there are no containers inside this sandbox. Run the program itself, a server in the"
        " background: `command > log.txt 2>&1 &`",
    ),
    Wall(
        says=r"not been booted with systemd|unrecognized service|"
        + _missing("systemctl", "service", "journalctl"),
        hint="no service manager runs in this sandbox. Start the server itself in the background:"
        " `command > log.txt 2>&1 &`",
    ),
    Wall(
        says=r"/var/lib/(?:dpkg/lock|apt/lists)|dpkg: error: .* requires superuser privilege|"
        + _missing("apt", "apt-get", "dpkg", "yum", "dnf", "apk", "pacman", "zypper", "brew"),
        hint="system packages cannot be installed: nobody is root in this sandbox. Use what is"
        f" there, install for yourself (a venv, npm, --prefix={WORKSPACE}/.local), or ask for a"
        " sandbox whose image has the package",
    ),
    Wall(
        says=r"\bsu: (?:Authentication failure|Critical error)|must be (?:setuid root|superuser)"
        r"|superuser privilege|are you root\?|chown: changing ownership|effective uid is not 0|"
        + _missing("sudo", "su", "doas"),
        hint=f"nobody is root in this sandbox. Run it without sudo or su; {WORKSPACE}, /tmp and the"
        f" home are yours, and programs can be installed into {WORKSPACE}/.local",
    ),
    Wall(says="externally-managed-environment", hint=_in_a_venv),
    Wall(
        says=r"No module named pip\b|" + _missing("pip", "pip3", "pipx", "uv", "poetry", "conda"),
        hint=_in_a_venv,
    ),
    Wall(
        says=r"No matching distribution found for|pip\._vendor",
        hint=f"this sandbox has no network, so pip cannot download: {_WHEELS}",
        offline=True,
    ),
    Wall(
        says=r"(?i)npm (?:err!|error) .*(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH|network)",
        hint="this sandbox has no network, so npm cannot download: upload the package (`npm pack`"
        " makes one) and run `npm install ./NAME.tgz`, or ask for a sandbox whose image has it",
        offline=True,
    ),
    Wall(
        says=r"Could not resolve host|unable to resolve host|Name or service not known"
        r"|Temporary failure in name resolution|Network is unreachable"
        r"|EAI_AGAIN|getaddrinfo ENOTFOUND|ENETUNREACH"
        r"|Failed to connect to (?!localhost|127\.|0\.0\.0\.0|\[?::1)\S+ port|cannot run ssh|"
        + _missing(
            "ping", "wget", "ssh", "scp", "rsync", "nc", "telnet", "dig", "nslookup", "host"
        ),
        hint=_NO_NETWORK,
        offline=True,
    ),
    Wall(
        says=r"CONNECT tunnel failed, response 403|Tunnel connection failed: 403"
        r"|Received HTTP code 403 from proxy after CONNECT|proxy.*403 Forbidden"
        r"|this sandbox may not (?:connect|[A-Z]+ http)|tlsv1 unrecognized name"
        r"|SOCKS5 .*(?:not allowed by ruleset|\(2\))",
        hint=_refused,
        proxied=True,
    ),
    Wall(
        says=r"(?i)read-only file system",
        hint=f"only {WORKSPACE}, /tmp and the home can be written to. Install programs into"
        f" {WORKSPACE}/.local",
    ),
)
"""The first that fits is told, so the more special ones come first."""

_PATTERNS = tuple((re.compile(wall.says), wall) for wall in WALLS)


def hint_for(
    result: CommandResult, tail: str, *, limits: Limits, command: str | None = None
) -> str | None:
    """What a command lacked that failed, and what to do instead; None if nothing is known.

    tail: the end of its output. command: its source, where that is known.
    """
    if not result.exit_code or result.reason in _TOLD_BY_REASON:
        return None
    offline = limits.network == "none"
    for pattern, wall in _PATTERNS:
        if _applies(wall, limits) and pattern.search(tail):
            return wall.hint if isinstance(wall.hint, str) else wall.hint(limits)
    if offline and result.exit_code == _CURL_NO_HOST and "curl" in _programs(command or ""):
        return _NO_NETWORK
    return None


def _applies(wall: Wall, limits: Limits) -> bool:
    if wall.proxied:
        return limits.network in ("allowlist", "open")
    return limits.network == "none" or not wall.offline


def _programs(command: str) -> set[str]:
    """The names of the programs that a command runs, as far as can be said soon."""
    try:
        calls = analyse(command, work=QUICK_WORK).calls
    except TooMuch:
        return set()
    names = (command_name(argv[0]) for call in calls for argv in call.argvs if argv)
    return {name for name in names if name}


def _size(count: float) -> str:
    """As in 512 MiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
