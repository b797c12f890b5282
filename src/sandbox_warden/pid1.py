"""Builds the warden from its arguments, all of them `name=value`."""

import gc
import os
import resource
import socket
from typing import Dict

from .door import Door
from .loop import Loop
from .meter import Meter
from .nursery_process import fork
from .paths import HOME, VOLUMES, set_home
from .relay import SOCKET_NAME
from .shell import prctl
from .state import WORKSPACE
from .warden import Warden

_PR_SET_DUMPABLE = 4
GARBAGE = 20_000
"""New objects before unused ones are looked for, which takes a millisecond for some thousand."""


def main(arguments: Dict[str, str]) -> None:
    """box: its id. build: the warden's build. deadman_s: how long the owner may be silent.
    listen_fd: an inherited listening socket; without it the warden listens for relays.
    ready_fd: a socket that gets a byte when the warden is about to serve.
    pids: process limit of the box. open_files: descriptor limit of a command.
    volumes: names of folders in /workspace, with slashes between them.
    home: the folder of the box's user.
    port: a TCP port for streams, at which the warden listens once it is asked to.
    file_bytes: the largest file, where whoever started the box has not set that limit.
    meter_NAME: descriptors of cgroup files."""
    VOLUMES[:] = [
        os.path.join(WORKSPACE, name) for name in arguments.get("volumes", "").split("/") if name
    ]
    set_home(arguments.get("home", HOME))
    if "file_bytes" in arguments:
        limit_itself(int(arguments["file_bytes"]), int(arguments.get("open_files", "0")))
    prctl(_PR_SET_DUMPABLE, 0)
    # Before anything else: what this process writes to its memory from here on is not the
    # nursery's as well.
    gc.freeze()
    nursery = fork()
    listen_fd = arguments.get("listen_fd")
    if listen_fd is None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(SOCKET_NAME)
        listener.listen(16)
    else:
        listener = socket.socket(fileno=int(listen_fd))
        listener.set_inheritable(False)
    meter = {k[len("meter_") :]: int(v) for k, v in arguments.items() if k.startswith("meter_")}
    for fd in meter.values():
        os.set_inheritable(fd, False)
    loop = Loop()
    warden = Warden(
        loop,
        Door(loop, listener, relayed=listen_fd is None),
        Meter(meter, max_pids=int(arguments.get("pids", "0"))),
        box=arguments.get("box", ""),
        build=arguments.get("build", ""),
        deadman_s=float(arguments.get("deadman_s", "120")),
        open_files=int(arguments.get("open_files", "0")),
        nursery=nursery,
        port=bound(int(arguments["port"])) if "port" in arguments else None,
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    if "ready_fd" in arguments:
        os.write(int(arguments["ready_fd"]), b"r")
        os.close(int(arguments["ready_fd"]))
    warden.serve()


def bound(port: int) -> socket.socket:
    """Taken before any process of the user can have it."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", port))
    except OSError:  # No IPv6 here.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind(("", port))
    return sock


def limit_itself(file_bytes: int, open_files: int) -> None:
    """Set what every process of the box inherits: see Limits in the server's runtime/base.py."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = 2 * open_files
    if 0 < most < resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
