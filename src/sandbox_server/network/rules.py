"""Rules: which hosts a box may reach, at which ports, with which methods and paths, and what it is
told where it may not. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from sandbox_server.network import hosts
from sandbox_server.network.headers import Secret
from sandbox_server.network.narrowing import Narrowing

HTTP, HTTPS = 80, 443
_USUAL = frozenset({HTTP, HTTPS})
_TOLD = 40
"""Rules that a refusal lists."""
_ODD_PATH = re.compile(r"(?i)%2e|%2f|%5c|\\|//|/\.{1,2}(/|$)")
"""What one server takes for another path than the next."""


class Verdict(StrEnum):
    ALLOWED = "allowed"
    REFUSED = "refused"
    """By the rules, or because a limit of the session is reached."""
    FAILED = "failed"
    """Allowed, but the other end cannot be reached."""


class Refused(Exception):
    """A connection that is not made, or is cut. The text is for the agent in the box, and never
    holds a secret."""

    def __init__(self, text: str, *, status: int = 403, verdict: Verdict = Verdict.REFUSED) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.verdict = verdict


def bad_request(text: str) -> Refused:
    return Refused(text, status=400)


def unreachable(text: str) -> Refused:
    return Refused(text, status=502, verdict=Verdict.FAILED)


def timed_out(text: str) -> Refused:
    return Refused(text, status=504, verdict=Verdict.FAILED)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What it leaves out, it allows: any method and path, and of ports the usual ones."""

    host: str = ""
    """A name, or `*.name` for those below it; empty where an address is named."""
    network: hosts.IPNetwork | None = None
    ports: frozenset[int] = frozenset()
    """Empty: those of http and https, and over them nothing else."""
    methods: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    """Exact ones, or prefixes that end with `*`."""
    https: bool = False
    """The box asks for http://, and the server speaks https with the host."""
    headers: Mapping[str, Secret] = field(default_factory=dict)
    ca: str = ""
    """A file with the authorities that may vouch for the host; empty: the server's usual ones."""

    @property
    def any_request(self) -> bool:
        """Whether what is sent does not matter, so that it may be encrypted."""
        return not (self.methods or self.paths)

    def names(self, host: hosts.Host) -> bool:
        if not isinstance(host, str):
            return self.network is not None and host in self.network
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return host == self.host

    def has_port(self, port: int) -> bool:
        return port in (self.ports or _USUAL)

    def takes(self, method: str, path: str) -> bool:
        if self.methods and method not in self.methods:
            return False
        return not self.paths or any(_fits(path, pattern) for pattern in self.paths)

    def __str__(self) -> str:
        where = self.host or str(self.network)
        if self.network is not None and self.network.num_addresses == 1:
            where = str(self.network.network_address)
        if self.ports:
            shown = (
                f"[{where}]" if self.network is not None and self.network.version == 6 else where
            )
            where = " ".join(f"{shown}:{port}" for port in sorted(self.ports))
        more = [*sorted(self.methods), *self.paths]
        if self.https:
            more.append("as http://")
        return f"{where} ({' '.join(more)})" if more else where


def _fits(path: str, pattern: str) -> bool:
    path = path.partition("?")[0]
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """How a request, or a connection, may go out."""

    target: hosts.Target
    https: bool = False
    tunnel: bool = False
    """Whether what is sent is not judged."""
    plain: bool = False
    """Whether what is not TLS may pass through a tunnel."""
    headers: Mapping[str, Secret] = field(default_factory=dict)
    ca: str = ""


class RuleSet:
    """All that a session may reach."""

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        latest: Callable[[], tuple[Rule, ...]] | None = None,
        open_: bool = False,
        narrowing: Narrowing | None = None,
    ) -> None:
        """latest: tells the rules as they are now, instead of `rules`. open_: any public host
        besides. narrowing: what the session's caller takes away."""
        self._latest = latest or partial(tuple, tuple(rules))
        self.open = open_
        self.narrowing = narrowing

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._latest()

    @property
    def texts(self) -> list[str]:
        """The rules as people read them."""
        if self.narrowing is not None and self.narrowing.denies_all:
            return list(self.narrowing.texts)
        return list(dict.fromkeys(map(str, self.rules)))

    def narrowed(self, narrowing: Narrowing | None) -> RuleSet:
        return RuleSet(latest=self._latest, open_=self.open, narrowing=narrowing)

    def __repr__(self) -> str:
        kind = "open" if self.open else "allowlist"
        return f"<RuleSet {kind}, {len(self.rules)} rules>"

    def tunnel(self, target: hosts.Target) -> Allowed:
        """Judge a connection of which nothing more is known. Raises Refused."""
        self._check_narrowing(target)
        there = [rule for rule in self.rules if rule.names(target.host)]
        found = [rule for rule in there if rule.has_port(target.port) and rule.any_request]
        if found or self.open:
            explicit = any(target.port in rule.ports for rule in found)
            plain = self.open or (explicit and target.port != HTTPS)
            return Allowed(target=target, tunnel=True, plain=plain)
        if any(rule.has_port(target.port) for rule in there):
            raise Refused(
                f"requests to {target.host} are judged one by one: ask for http://{target.host}/…"
                f" instead of https://, and the proxy speaks https with it. {self.told()}"
            )
        raise Refused(f"this sandbox may not connect to {target}. {self.told()}")

    def request(self, target: hosts.Target, method: str, path: str, *, https: bool) -> Allowed:
        """Judge a request for a URL, of http or https. Raises Refused."""
        self._check_narrowing(target)
        there = [rule for rule in self.rules if rule.names(target.host)]
        found = [rule for rule in there if rule.has_port(_port(rule, target, https=https))]
        if any(rule.paths for rule in found) and _ODD_PATH.search(path.partition("?")[0]):
            raise bad_request("the path has dots, slashes or backslashes that are ambiguous")
        found = [rule for rule in found if rule.takes(method, path)]
        if not found and not self.open:
            # Without the path, which may hold a secret: this is logged.
            what = f"that path of http://{target}/" if there else f"http://{target}/"
            raise Refused(f"this sandbox may not {method} {what}. {self.told()}")
        upgraded = [rule for rule in found if rule.https]
        secure = https or bool(upgraded)
        if any(rule.headers for rule in found) and method == "TRACE":
            raise Refused("TRACE is not allowed there: it would answer with what the proxy adds")
        return Allowed(
            target=_upgraded(target) if upgraded and not https else target,
            https=secure,
            headers={name: value for rule in found for name, value in rule.headers.items()},
            ca=next((rule.ca for rule in found if rule.ca), ""),
        )

    def _check_narrowing(self, target: hosts.Target) -> None:
        if self.narrowing is not None and not self.narrowing.may_pass(target.host):
            raise self.denied(target)

    def passes(self, host: hosts.Host, address: hosts.IPAddress) -> bool:
        """Whether the caller of the session lets it go there. host: as it was asked for."""
        return self.narrowing is None or self.narrowing.passes(host, address)

    def keeps(self, allowed: Allowed, address: hosts.IPAddress) -> bool:
        """Whether what was allowed once may stay open. Requests are judged one by one anyway."""
        target = allowed.target
        if not (self.passes(target.host, address) and self.address(address, target.port)):
            return False
        if allowed.tunnel:
            try:
                return self.tunnel(target).plain >= allowed.plain
            except Refused:
                return False
        return self.open or any(
            rule.names(target.host) and rule.has_port(target.port) for rule in self.rules
        )

    def denied(self, target: hosts.Target) -> Refused:
        """By the session's caller."""
        return Refused(
            f"this sandbox may not connect to {target}: it was made so, or told so later."
            f" {self.told()}"
        )

    def address(self, address: hosts.IPAddress, port: int) -> bool:
        """Whether a host that is allowed may be at this address."""
        return hosts.is_public(address) or self.named(address, port)

    def named(self, address: hosts.IPAddress, port: int) -> bool:
        """Whether the operator has named the address as such."""
        forms = {address, hosts.embedded(address) or address}
        return any(
            rule.has_port(port) and any(rule.names(form) for form in forms) for rule in self.rules
        )

    def told(self) -> str:
        """What is allowed, as a sentence."""
        if self.narrowing is not None and self.narrowing.nothing:
            return "It may reach nothing."
        if self.open and not (self.narrowing is not None and self.narrowing.denies_all):
            return "Allowed is every public host; not private, local or reserved addresses."
        texts = self.texts
        shown = texts[:_TOLD]
        if not shown:
            return "It may reach nothing: the operator has allowed no host."
        more = len(texts) - len(shown)
        return f"Allowed are: {', '.join(shown)}{f' and {more} more' if more else ''}."


def _port(rule: Rule, target: hosts.Target, *, https: bool) -> int:
    """The port at which a request would go out by a rule."""
    return _upgraded(target).port if rule.https and not https else target.port


def _upgraded(target: hosts.Target) -> hosts.Target:
    return hosts.Target(target.host, HTTPS if target.port == HTTP else target.port)


def parse_rule(text: str) -> Rule:
    """`host`, `*.host`, an address or a network, each with `:port` or without. Raises
    InvalidHost."""
    if (network := hosts.parse_network(text)) is not None:
        return Rule(network=network)
    host, _, port = text.rpartition(":") if re.search(r":\d{1,5}$", text) else (text, "", "")
    ports = frozenset({int(port)} if port else ())
    if any(not 1 <= each <= 65535 for each in ports):
        raise hosts.InvalidHost(f"{text!r}: a port is between 1 and 65535")
    if (network := hosts.parse_network(host.removeprefix("[").removesuffix("]"))) is not None:
        return Rule(network=network, ports=ports)
    below = host.startswith("*.")
    name = hosts.parse_host(host.removeprefix("*."))
    if not isinstance(name, str) or (below and "." not in name):
        raise hosts.InvalidHost(f"{text!r}: name a host, such as example.com, or *.example.com")
    return Rule(host=f"*.{name}" if below else name, ports=ports)
