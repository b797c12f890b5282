"""Names, addresses and ports of what a box wants to reach, in one form each; which addresses are
public. Boxes reach others only where an operator has named the address."""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

_NOT_PUBLIC = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32",
        "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
        "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
        "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
)  # fmt: skip
"""Among them the metadata services of clouds, of which 168.63.129.16 looks like a public one."""
_GLOBAL_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
Host = str | IPAddress
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_LONGEST = 253


def is_public(address: IPAddress) -> bool:
    """Whether anybody on the internet can reach it. An IPv6 address that stands for an IPv4 one is
    judged by that."""
    if isinstance(address, IPv6Address):
        inner = embedded(address)
        if inner is not None:
            return is_public(inner)
        if address not in _GLOBAL_V6:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )


def embedded(address: IPAddress) -> IPv4Address | None:
    """The IPv4 address that the kernel or a gateway makes of an IPv6 one."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(address.packed[-4:]) if address in _NAT64 else None


def plain(address: IPAddress) -> IPAddress:
    """An IPv4 address written as an IPv6 one, as itself: rules name it in that form."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def parse_address(text: str) -> IPAddress | None:
    """An address in its usual form alone: not `127.1`, `0x7f000001`, `2130706433` or with a
    zone."""
    with contextlib.suppress(ValueError):
        if "%" not in text:
            return plain(ip_address(text))
    return None


def parse_network(text: str, *, strict: bool = True) -> IPNetwork | None:
    """strict: not one with bits set behind its prefix."""
    try:
        return ip_network(text, strict=strict)
    except ValueError:
        return None


def is_own(address: IPAddress) -> bool:
    """Whether it is one of this machine's: what listens there may trust whoever is here. Asks the
    routing table, and sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return bool(probe.getsockname()[0] == str(address))
    except OSError:
        return False


class InvalidHost(ValueError):
    """The message says what is wrong with it."""


@dataclass(frozen=True)
class Target:
    """A port of a host."""

    host: Host
    port: int

    def __str__(self) -> str:
        host = self.host
        shown = f"[{host}]" if not isinstance(host, str) and host.version == 6 else host
        return f"{shown}:{self.port}"


def parse_host(text: str) -> Host:
    """A name in lower case without a final dot, or an address. Raises InvalidHost.

    A name that ends in a number is refused: resolvers take `127.1`, `0x7f.1` and `2130706433` for
    addresses.
    """
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if (address := parse_address(bare)) is not None:
        return address
    name = _ascii(text).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidHost(f"{text[:80]!r} is not the name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        raise InvalidHost(f"{text[:80]!r} is not an address in its usual form, such as 192.0.2.1")
    return name


def _ascii(text: str) -> str:
    try:
        return text.encode("ascii" if text.isascii() else "idna").decode("ascii")
    except UnicodeError:
        raise InvalidHost(f"{text[:80]!r} is not the name of a host") from None


def parse_target(text: str, *, port: int | None = None) -> Target:
    """`host:port`, `[address]:port`; port: of a host that comes without. Raises InvalidHost."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(?::(\d{1,5}))?", text)
    number = int(found[2]) if found and found[2] else port
    if found is None or number is None or not 1 <= number <= 65535:
        raise InvalidHost(f"{text[:80]!r} is not a host with a port, such as example.com:443")
    return Target(parse_host(found[1]), number)
