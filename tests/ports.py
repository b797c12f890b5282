"""Ports for servers of tests."""

import socket
from pathlib import Path
from random import SystemRandom

_LOWEST = 10_000
_given: set[int] = set()


def free_port() -> int:
    """Not one of those that the kernel gives to clients: such a port could be taken by somebody's
    connection before its server is started."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    ports = range(_LOWEST, max(int(ephemeral.split()[0]), _LOWEST + 1000))
    while True:
        port = SystemRandom().choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port
