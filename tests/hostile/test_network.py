"""A box without a network reaches nobody (docs/security.md, 28)."""

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from sandbox_server.runtime.warden.client import WardenClient

from .conftest import ask_python, run_python

CONNECT = """
import json, socket
reached = []
for family, kind, address in {targets!r}:
    peer = socket.socket(family, kind)
    peer.settimeout(2)
    try:
        peer.connect(tuple(address) if isinstance(address, list) else address)
        peer.send(b"x")
        reached.append(address)
    except OSError: pass
print(json.dumps([str(address) for address in reached]))
"""
Target = tuple[int, int, list[object] | str]


def tcp(host: str, port: int) -> Target:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return int(family), int(socket.SOCK_STREAM), [host, port]


async def reached(warden: WardenClient, targets: list[Target]) -> list[str]:
    found: list[str] = await ask_python(warden, CONNECT.format(targets=targets))
    return found


@pytest.fixture
def host_port() -> Iterator[int]:
    """A port of the host on all its addresses: the server's own, or that of its Redis."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def host_addresses() -> list[str]:
    lines = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    return [word.split("/")[0] for line in lines.splitlines() for word in line.split()[3:4]]


async def test_there_is_only_the_loopback(warden: WardenClient) -> None:
    result = await warden.run("tail -n +3 /proc/net/dev | cut -d: -f1; tail -n +2 /proc/net/route")
    assert result.output.split() == ["lo"]


async def test_metadata_gateways_and_the_internet_are_unreachable(warden: WardenClient) -> None:
    places = ["169.254.169.254", "169.254.170.2", "172.17.0.1", "10.0.0.1", "192.168.0.1",
              "192.168.65.2", "1.1.1.1", "fd00:ec2::254", "2606:4700:4700::1111"]  # fmt: skip
    targets = [tcp(place, port) for place in places for port in (80, 53)]
    datagrams: list[Target] = [(2, 2, [place, 53]) for place in places if ":" not in place]
    assert await reached(warden, targets + datagrams) == []


async def test_ports_of_the_host_are_unreachable(warden: WardenClient, host_port: int) -> None:
    addresses = {*host_addresses(), "127.0.0.1", "::1"}
    assert await reached(warden, [tcp(address, host_port) for address in addresses]) == []


async def test_sockets_of_the_host_are_unreachable(warden: WardenClient) -> None:
    """Abstract ones have no file to hide; they belong to a network namespace."""
    name = f"\0hostile-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert await reached(warden, [(1, 1, name)]) == []


async def test_another_box_is_unreachable(warden: WardenClient, neighbour: WardenClient) -> None:
    await neighbour.run(
        "python3 -c 'import socket, time\n"
        'a = socket.create_server(("", 8123))\n'
        'b = socket.socket(1); b.bind("\\0hostile-box"); b.listen()\n'
        "time.sleep(60)' & until grep -q hostile-box /proc/net/unix; do sleep 0.1; done",
        timeout_s=10,
    )
    targets: list[Target] = [tcp("127.0.0.1", 8123), (1, 1, "\0hostile-box")]
    assert len(await reached(neighbour, targets)) == len(targets)
    assert await reached(warden, targets) == []


async def test_there_is_no_resolver(warden: WardenClient) -> None:
    result = await run_python(
        warden,
        "import socket\n"
        "print(socket.gethostbyname('localhost'))\n"
        "try: print(socket.getaddrinfo('example.com', 80))\n"
        "except socket.gaierror: print('unknown')\n",
        timeout_s=15,
    )
    assert result.output == "127.0.0.1\nunknown\n"
