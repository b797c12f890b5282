"""The bubblewrap options of a box. Pure functions of a Layout, which describes this machine.

bubblewrap executes its options in order, so the options that make / and /dev read-only come last;
the writable mounts on top of them are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.base import ENVIRONMENT, HOME, USUAL_USER, BoxUser
from sandbox_server.runtime.layers import OWN_PROGRAMS, PROGRAMS
from sandbox_server.runtime.warden.zipapp import SAVE_ARTIFACT

UID = 1000
PLACES = {"workspace": WORKSPACE, "home": HOME, "tmp": "/tmp", "shm": "/dev/shm"}
"""The writable folders of a box, name: path."""
OWN = "/run/sandbox"
WARDEN = f"{OWN}/warden"
START = f"import sys\nsys.path.insert(0, {WARDEN!r})\nimport sandbox_warden.__main__\n"
"""start.py in the warden's folder: what a box runs."""

PERMS = {"workspace": "0755", "home": "0755", "tmp": "1777", "shm": "1777"}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_FOLDERS = ("/etc", "/etc/ssl", "/home", "/run", OWN, f"{OWN}/bin", "/var")
"""Created explicitly: bubblewrap would make implicit parents accessible to their owner only."""


def accounts(user: BoxUser) -> dict[str, str]:
    """The files that name the user of a box, path: content."""
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"{user.name}:x:{UID}:{UID}::{user.home}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "/etc/group": f"root:x:0:\n{user.name}:x:{UID}:\nnogroup:x:65534:\n",
    }


SHARED = {
    **accounts(USUAL_USER),
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "/etc/hostname": "sandbox\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Our own files in every box, path: content."""

EMPTY_FILE, EMPTY_FOLDER = "empty", "nothing"
"""Next to SHARED: mounted over hidden files and folders."""

ETC = (
    "ImageMagick-*", "X11", "alternatives", "ca-certificates", "ca-certificates.conf",
    "crypto-policies", "debian_version", "fonts", "gai.conf", "groff", "host.conf", "inputrc",
    "java-*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic",
    "magic.mime", "mime.types", "os-release", "papersize", "perl", "pki/ca-trust", "pki/java",
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "protocols", "python3*", "services",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "texmf", "timezone", "vim", "xml",
)  # fmt: skip
"""Glob patterns of the host's /etc that programs need. Nothing that may contain a secret."""


@dataclass(frozen=True, kw_only=True)
class Python:
    """The interpreter of the warden, which is also the user's `python3`."""

    executable: str
    prefix: str = ""
    """Its installation, if outside of /usr; bound at the same path."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the files and folders of a box come from."""

    shared: str
    """The folder with the warden and the files of SHARED, by base name."""
    places: Mapping[str, str | int]
    """For each of PLACES: a folder to bind, or the size of a tmpfs."""
    home: str = HOME
    """Where the home is; if not at HOME, there is a link to it."""
    python: Python
    python_source: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symlinks in the host's root (merged /usr), such as bin: usr/bin."""
    folders: tuple[str, ...] = ()
    """Those of the same names that are real folders on the host."""
    etc: tuple[str, ...] = ()
    """Paths of the host's /etc to bind."""
    has_python_command: bool = False
    """Whether the host has `python` besides `python3`."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Read-only files and folders by path in the box."""
    bound: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """Folders of the host in the places, by path in the box, and whether they are read-only."""
    devices: tuple[str, ...] = ()
    """Device nodes besides the usual ones, at the same paths."""
    hidden_files: tuple[str, ...] = ()
    hidden_folders: tuple[str, ...] = ()
    """Paths in /proc that appear empty."""


def options(layout: Layout, env: Mapping[str, str]) -> list[str]:
    """All options except the command. Raises InvalidRequest for an invalid variable: options are
    separated by NUL, so a NUL in a value would inject further options."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidRequest(
                f"invalid environment variable {name!r}: the name must not be empty or contain `=`,"
                " and neither name nor value may contain NUL"
            )
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
        *_layers(layout),
        *(word for path in layout.devices for word in ("--dev-bind", path, path)),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", WORKSPACE),
    ]


def command(layout: Layout, arguments: list[str], *, pids: int | None) -> list[str]:
    """The warden's command line. `pids` is set inside the user namespace, where the host's
    processes of the same uid do not count."""
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
    folders = [OWN_PROGRAMS, _SYSTEM_PATH, f"{OWN}/bin"]
    if layout.python.prefix:
        folders.insert(1, f"{layout.python.prefix}/bin")
    folders[1:1] = [path for path in PROGRAMS if path.rpartition("/")[0] in layout.layers]
    variables = {
        "PATH": ":".join(folders),
        **ENVIRONMENT,
        "PYTHONUSERBASE": f"{WORKSPACE}/.local",
        "XDG_CACHE_HOME": f"{WORKSPACE}/.cache",
        # As in the image of a docker box: `pip install` and `npm install -g` may simply work.
        "NPM_CONFIG_PREFIX": f"{WORKSPACE}/.local",
        "NPM_CONFIG_CACHE": f"{WORKSPACE}/.cache/npm",
        "NPM_CONFIG_UPDATE_NOTIFIER": "false",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
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
    for path in (*SHARED, WARDEN, f"{OWN}/bin/{SAVE_ARTIFACT}"):
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
    if layout.home != HOME:
        words += ["--symlink", layout.home, HOME]
    for name, path in {**PLACES, "home": layout.home}.items():
        source = layout.places[name]
        if isinstance(source, str):
            words += ["--bind", source, path]
        else:
            words += ["--perms", PERMS[name], "--size", str(source), "--tmpfs", path]
    for path, (source, read_only) in layout.bound.items():
        words += ["--ro-bind" if read_only else "--bind", source, path]
    return words


def _python(layout: Layout) -> list[str]:
    """Bound after the places: the installation may be below one of them (a home, /tmp)."""
    if not layout.python.prefix:
        return []
    return ["--ro-bind", layout.python_source or layout.python.prefix, layout.python.prefix]


def _layers(layout: Layout) -> list[str]:
    """Bound after everything else: one may be inside of the python's installation."""
    words = []
    there = ("/usr", *(f"/{name}" for name in (*layout.links, *layout.folders)))
    for path in layout.layers:
        for parent in _parents(path, below=(*there, layout.python.prefix or "/usr")):
            words += ["--perms", "0755", "--dir", parent]
    for path, source in layout.layers.items():
        words += ["--ro-bind", source, path]
    return words


def _parents(path: str, *, below: tuple[str, ...]) -> list[str]:
    """The folders above a path, the topmost first; none that a mount brings along."""
    if any(path.startswith(f"{folder}/") for folder in below):
        return []
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
