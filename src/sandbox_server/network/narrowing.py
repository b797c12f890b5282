"""What a caller takes away from what the operator lets its session reach. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_network

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import EgressRules
from sandbox_server.network import hosts

_EVERYTHING = frozenset({ip_network("0.0.0.0/0"), ip_network("::/0")})


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """An address that is allowed, or whose name is, counts before one that is denied. What is
    neither stays as the operator has it."""

    names: tuple[str, ...] = ()
    """Allowed ones, or `*.name` for those below it."""
    allowed: tuple[hosts.IPNetwork, ...] = ()
    denied: tuple[hosts.IPNetwork, ...] = ()
    texts: tuple[str, ...] = field(default=(), compare=False)
    """What is allowed, as its caller wrote it."""

    @property
    def denies_all(self) -> bool:
        """Whether nothing passes that is not allowed."""
        return any(each in _EVERYTHING for each in self.denied)

    @property
    def nothing(self) -> bool:
        """Whether nothing passes at all."""
        return self.denies_all and not self.names and not self.allowed

    def may_pass(self, host: hosts.Host) -> bool:
        """Whether some address of a host may pass: a name is not resolved where none can."""
        if not isinstance(host, str):
            return self.passes(host, host)
        return bool(self.allowed) or not self.denies_all or self._named(host)

    def passes(self, host: hosts.Host, address: hosts.IPAddress) -> bool:
        """Whether a connection to this address may be made. host: as it was asked for."""
        if isinstance(host, str) and self._named(host):
            return True
        forms = {address, hosts.embedded(address) or address}
        if _among(forms, self.allowed):
            return True
        return not self.denies_all and not _among(forms, self.denied)

    def _named(self, host: str) -> bool:
        return any(is_named(host, each) for each in self.names)


def _among(forms: set[hosts.IPAddress], networks: tuple[hosts.IPNetwork, ...]) -> bool:
    if any(each in _EVERYTHING for each in networks):
        return True
    return any(form in network for form in forms for network in networks)


def is_named(host: str, pattern: str) -> bool:
    """pattern: a name, or `*.name` for those below it."""
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def narrowing_of(rules: EgressRules | None) -> Narrowing | None:
    """None if nothing is taken away. Raises InvalidRequest for what is no host or address."""
    if rules is None or not (rules.allow or rules.deny):
        return None
    denied = tuple(_denied(text) for text in rules.deny)
    names, allowed = [], []
    for text in rules.allow:
        if (network := hosts.parse_network(text, strict=False)) is not None:
            allowed.append(network)
        else:
            names.append(_name(text))
    found = Narrowing(
        names=tuple(names), allowed=tuple(allowed), denied=denied, texts=tuple(rules.allow)
    )
    if names and not found.denies_all:
        raise InvalidRequest(
            f"egress_rules: allow has the name {names[0]!r}, which means nothing while all else is"
            " allowed, too: deny 0.0.0.0/0 besides"
        )
    return found


def _denied(text: str) -> hosts.IPNetwork:
    network = hosts.parse_network(text, strict=False)
    if network is None:
        raise InvalidRequest(
            f"egress_rules.deny: {text[:80]!r} is not an address or a network, such as 192.0.2.1 or"
            " 192.0.2.0/24; names cannot be denied: deny 0.0.0.0/0, and allow the others"
        )
    return network


def _name(text: str) -> str:
    below = text.startswith("*.")
    try:
        name = hosts.parse_host(text.removeprefix("*."))
    except hosts.InvalidHost as exc:
        raise InvalidRequest(f"egress_rules.allow: {exc}") from None
    if not isinstance(name, str) or ("." not in name and not below):
        raise InvalidRequest(
            f"egress_rules.allow: {text[:80]!r}: name a host, such as example.com or *.example.com,"
            " or an address"
        )
    return f"*.{name}" if below else name
