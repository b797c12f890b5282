"""A box as options of bubblewrap. Pure: what is where on this machine comes in as a Layout.

Order matters to bubblewrap: it carries out its options one after the other, so what makes the root
and /dev read-only comes last, and mounts on top of them (the writable places) keep their own mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import USER, WORKSPACE
from sandbox_server.runtime.base import ENVIRONMENT, HOME

UID = 1000
PLACES = {"workspace": WORKSPACE, "home": HOME, "tmp": "/tmp", "shm": "/dev/shm"}
"""All that can be written in a box. Name: path."""
OWN = "/run/sandbox"
WARDEN = f"{OWN}/warden"
START = f"import sys\nsys.path.insert(0, {WARDEN!r})\nimport sandbox_warden.__main__\n"
"""What a box runs, as start.py in the warden's folder."""

PERMS = {"workspace": "0755", "home": "0755", "tmp": "1777", "shm": "1777"}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_FOLDERS = ("/etc", "/etc/ssl", "/home", "/run", OWN, f"{OWN}/bin", "/var")
"""Made first: as parents of something else they would be for their owner alone."""

SHARED = {
    "/etc/passwd": (
        f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{UID}:{UID}::{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "/etc/group": f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "/etc/hostname": "sandbox\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Files of our own that every box has, by their path in it."""

EMPTY_FILE, EMPTY_FOLDER = "empty", "nothing"
"""Beside SHARED: what is shown in place of what is hidden."""

ETC = (
    "ImageMagick-*",
    "X11",
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "papersize",
    "perl",
    "pki/ca-trust",
    "pki/java",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "protocols",
    "python3*",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "texmf",
    "timezone",
    "vim",
    "xml",
)
"""What programs need of the host's /etc, as patterns. Nothing that may hold a secret."""


@dataclass(frozen=True, kw_only=True)
class Python:
    """The interpreter a box's warden runs on, and `python3` for its user."""

    executable: str
    prefix: str = ""
    """Its installation where that is outside of /usr: bound at the same path."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the parts of a box come from."""

    shared: str
    """The folder with the warden and SHARED, each under its last name."""
    places: Mapping[str, str | int]
    """For each of PLACES the folder to bind, or a size: bubblewrap makes a tmpfs."""
    python: Python
    python_source: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    """Links of the host's root (merged /usr), by name: /bin -> usr/bin."""
    folders: tuple[str, ...] = ()
    """The same names where the host has real folders."""
    etc: tuple[str, ...] = ()
    """Paths of the host's /etc to show."""
    has_python_command: bool = False
    """Whether the host has `python` besides `python3`."""
    hidden_files: tuple[str, ...] = ()
    hidden_folders: tuple[str, ...] = ()
    """Of /proc: they are there, and empty."""


def options(layout: Layout, env: Mapping[str, str]) -> list[str]:
    """Everything but the command to run. Raises InvalidRequest for an impossible environment: the
    options are separated by NUL, so a NUL in one of them would be the way to more of them."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidRequest(f"{name!r} cannot be a variable with that name and value")
    return [
        *_isolation(),
        *_environment(layout, env),
        *(word for path in _FOLDERS for word in ("--perms", "0755", "--dir", path)),
        *_system(layout),
        *_etc(layout),
        *_own_files(layout),
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"),
        *_hidden(layout),
        *_places(layout),
        *_python(layout),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", WORKSPACE),
    ]


def command(layout: Layout, arguments: list[str], *, pids: int | None) -> list[str]:
    """The warden's command line. `pids` limits processes from inside of the user namespace, where
    the host's own processes of the same user do not count."""
    warden = [layout.python.executable, "-I", "-S", f"{WARDEN}/start.py", "pid1", *arguments]
    if pids is None:
        return warden
    return ["bash", "-c", f'ulimit -u {pids}; exec "$@"', "warden", *warden]


def _isolation() -> list[str]:
    return [
        *("--unshare-user", "--uid", str(UID), "--gid", str(UID), "--disable-userns"),
        *("--unshare-pid", "--as-pid-1", "--die-with-parent", "--new-session"),
        *("--unshare-ipc", "--unshare-net", "--unshare-cgroup-try"),
        *("--unshare-uts", "--hostname", "sandbox"),
        *("--cap-drop", "ALL"),
    ]


def _environment(layout: Layout, env: Mapping[str, str]) -> list[str]:
    folders = [f"{WORKSPACE}/.local/bin", _SYSTEM_PATH, f"{OWN}/bin"]
    if layout.python.prefix:
        folders.insert(1, f"{layout.python.prefix}/bin")
    variables = {
        "PATH": ":".join(folders),
        **ENVIRONMENT,
        "PYTHONUSERBASE": f"{WORKSPACE}/.local",
        "XDG_CACHE_HOME": f"{WORKSPACE}/.cache",
        **env,
    }
    pairs = [("--setenv", name, value) for name, value in variables.items()]
    return ["--clearenv", *(word for pair in pairs for word in pair)]


def _system(layout: Layout) -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name, target in layout.links.items():
        words += ["--symlink", target, f"/{name}"]
    for name in layout.folders:
        words += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*words, "--symlink", "/tmp", "/var/tmp"]


def _etc(layout: Layout) -> list[str]:
    words = ["--symlink", "/proc/self/mounts", "/etc/mtab"]
    for path in layout.etc:
        words += ["--ro-bind-try", path, path]
    return words


def _own_files(layout: Layout) -> list[str]:
    words = []
    for path in (*SHARED, WARDEN):
        words += ["--ro-bind", f"{layout.shared}/{path.rpartition('/')[2]}", path]
    if not layout.has_python_command:
        words += ["--symlink", layout.python.executable, f"{OWN}/bin/python"]
    return words


def _hidden(layout: Layout) -> list[str]:
    words = []
    for name, paths in ((EMPTY_FILE, layout.hidden_files), (EMPTY_FOLDER, layout.hidden_folders)):
        for path in paths:
            words += ["--ro-bind", f"{layout.shared}/{name}", path]
    return words


def _places(layout: Layout) -> list[str]:
    words = []
    for name, path in PLACES.items():
        source = layout.places[name]
        if isinstance(source, str):
            words += ["--bind", source, path]
        else:
            words += ["--perms", PERMS[name], "--size", str(source), "--tmpfs", path]
    return words


def _python(layout: Layout) -> list[str]:
    """After the places: an installation below one of them (a home, /tmp) shows through."""
    if not layout.python.prefix:
        return []
    return ["--ro-bind", layout.python_source or layout.python.prefix, layout.python.prefix]
