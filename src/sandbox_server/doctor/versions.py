"""Known escapes by version of runc, containerd, the engine, gVisor and bubblewrap. Pure, except
that it reads changelogs of Debian packages."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from sandbox_server.doctor.findings import Finding, State

Numbers = tuple[int, int, int, int]
"""Major, minor, patch, and the number of the release candidate, or _FINAL."""

_FINAL = 1 << 30
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-~]?rc\.?(\d+))?")
_DISTRIBUTION = re.compile(
    r"[+~-](?:ds|dfsg|deb|\d*ubuntu|esm)|\.(?:el|fc|amzn|suse)\d|[-+]\w*deb\d"
)
_UPSTREAM_COMMIT = re.compile(r"v\d+\.\d+\.\d+\S*-\d+-g[0-9a-f]+")
_BACKPORTERS = ("debian", "ubuntu", "red hat", "centos", "rocky", "alma", "fedora", "oracle",
                "suse", "amazon")  # fmt: skip
_OLD_GVISOR_DAYS = 365


@dataclass(frozen=True)
class Escape:
    """A known escape from a container, and the first fixed version of each branch."""

    cve: str
    what: str
    fixed: tuple[str, ...]


_PROC = ("1.2.8", "1.3.3", "1.4.0-rc.3")
ESCAPES = {
    "runc": (
        Escape("CVE-2024-21626", "a leaked descriptor leads to the host's files", ("1.1.12",)),
        Escape("CVE-2025-31133", "masked paths can be turned into writable ones of /proc", _PROC),
        Escape("CVE-2025-52565", "/dev/console can be mounted over before paths are masked", _PROC),
        Escape("CVE-2025-52881", "writes to /proc can be redirected", _PROC),
    ),
    "containerd": (
        Escape("CVE-2020-15257", "its shim can be reached from the host's network",
               ("1.3.9", "1.4.3")),
    ),
    "engine": (
        Escape("CVE-2019-14271", "docker cp runs code of the container as root", ("19.03.1",)),
    ),
}  # fmt: skip
_FIXES = {
    "runc": "install runc {} or newer (docker-ce: apt install --only-upgrade containerd.io)",
    "containerd": "install containerd {} or newer",
    "engine": "install a Docker engine {} or newer",
}
_PACKAGES = {"runc": "runc", "containerd": "containerd", "engine": "docker.io"}


@dataclass(frozen=True, kw_only=True)
class Component:
    """A component of an engine, as `docker version` reports it."""

    name: str
    version: str
    commit: str = ""
    system: str = ""
    """The engine's operating system."""
    local: bool = False
    """Whether the engine is on this machine."""


def numbers(version: str) -> Numbers | None:
    found = _VERSION.match(version.strip())
    if found is None:
        return None
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), int(candidate) if candidate else _FINAL


def is_fixed(version: Numbers, escape: Escape) -> bool:
    """A branch that is not listed is fixed if it is newer than all that are."""
    fixes = sorted(filter(None, map(numbers, escape.fixed)))
    of_branch = [fix for fix in fixes if fix[:2] == version[:2]]
    return version >= of_branch[0] if of_branch else version > fixes[-1]


def examine_version(part: Component, *, weak: State = State.FAILED) -> Iterator[Finding]:
    """One finding for the component, or one for each escape that is or may be open. `weak`: the
    state for an open one, lower if boxes do not depend on this component."""
    version = numbers(part.version)
    full = part.commit if part.commit.startswith(part.version) else part.version
    if version is None:
        told = f"unknown version {part.version!r}"
        yield Finding(part.name, State.UNKNOWN, told, fix=f"check {part.name}")
        return
    open_ = [escape for escape in ESCAPES[part.name] if not is_fixed(version, escape)]
    named = _named_in_changelog(part) if open_ and part.local and _is_packaged(part) else set()
    left = [escape for escape in open_ if escape.cve not in named]
    if not left:
        how = f"{full}: no known escape" + (", by its changelog" if open_ else "")
        yield Finding(part.name, State.OK, how)
    for escape in left:
        yield _open(part, escape, full, weak)


def _open(part: Component, escape: Escape, full: str, weak: State) -> Finding:
    fixed = " / ".join(escape.fixed)
    told = f"{full}: {escape.cve} (fixed in {fixed}): {escape.what}"
    if not _is_packaged(part):
        return Finding(part.name, weak, told, fix=_FIXES[part.name].format(fixed))
    package = _PACKAGES[part.name]
    return Finding(
        part.name,
        State.UNKNOWN,
        f"{told}; a distribution's package may have the fix under an old version number",
        fix=f"upgrade the package, and look for {escape.cve} in its changelog: apt changelog"
        f" {package}, or rpm -q --changelog {package}",
    )


def _is_packaged(part: Component) -> bool:
    """Whether it is a distribution's package: those have fixes under old version numbers."""
    if _DISTRIBUTION.search(part.version) or _DISTRIBUTION.search(part.commit):
        return True
    if _UPSTREAM_COMMIT.fullmatch(part.commit):
        return False
    return any(name in part.system.lower() for name in _BACKPORTERS) and not part.commit


def _named_in_changelog(part: Component) -> set[str]:
    """The CVEs that the changelog of a Debian package names."""
    path = Path("/usr/share/doc", _PACKAGES[part.name], "changelog.Debian.gz")
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            return set(re.findall(r"CVE-\d{4}-\d+", file.read(1 << 22)))
    except (OSError, EOFError):
        return set()


def examine_gvisor(version: str, today: date) -> Finding:
    """gVisor releases are numbered by date: check the age."""
    found = re.search(r"(20\d{6})", version)
    if found is None:
        told = f"no date in version {version!r}"
        return Finding("gvisor", State.UNKNOWN, told, fix="install a release")
    age = (today - datetime.strptime(found[1], "%Y%m%d").date()).days
    if age > _OLD_GVISOR_DAYS:
        told = f"{version} is {age // 365} years old" if age >= 730 else f"{version} is a year old"
        fix = "install a newer release of runsc: its fixes are not listed by version"
        return Finding("gvisor", State.WARNING, told, fix=fix)
    return Finding("gvisor", State.OK, version)


def examine_bubblewrap(version: str, *, setuid: bool) -> Finding:
    """Known escapes need a setuid root executable, which boxes do not need."""
    known = numbers(version.removeprefix("bubblewrap").strip())
    if setuid:
        old = known is not None and known < (0, 4, 1, 0)
        return Finding(
            "bubblewrap",
            State.FAILED if old else State.WARNING,
            f"{version} is setuid root" + (": CVE-2020-5291 (fixed in 0.4.1)" if old else ""),
            fix="allow user namespaces, and chmod u-s the bwrap executable",
        )
    if known is None:
        told = f"unknown version {version!r}"
        return Finding("bubblewrap", State.UNKNOWN, told, fix="bwrap --version")
    return Finding("bubblewrap", State.OK, f"{version}, not setuid")
