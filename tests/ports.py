"""Ports for servers of tests."""

import os
import socket
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import SystemRandom

_LOWEST = 10_000
_PAIR = 2
"""A server takes the next port, too: for previews."""


def free_port() -> int:
    """One that is free as is the next one, and that no process of this run of tests gives to
    another server before all others had a turn."""
    return next(port for port in _turns if _is_free(port) and _is_free(port + 1))


def _in_turn() -> Iterator[int]:
    """Not those that the kernel gives to clients: such a port could be taken by somebody's
    connection before its server is started."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    end = max(int(ephemeral.split()[0]), _LOWEST + 1000)
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = list(range(_LOWEST + _PAIR * process, end - 1, _PAIR * processes))
    SystemRandom().shuffle(ports)
    return cycle(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_turns = _in_turn()
