"""Names and ports of what a box wants to reach, in one form each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandbox_server.network import addresses
from sandbox_server.network.addresses import IPAddress

Host = str | IPAddress
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_LONGEST = 253


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
    if (address := addresses.parse(bare)) is not None:
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
