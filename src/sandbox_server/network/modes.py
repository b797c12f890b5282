"""Which network a session gets: the server has a default, an environment may have its own, and a
request may ask for another, up to what the operator allows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import EgressRules
from sandbox_server.network.hosts import is_public
from sandbox_server.network.narrowing import Narrowing, is_named, narrowing_of
from sandbox_server.network.rules import RuleSet
from sandbox_server.registry.environments import Environment
from sandbox_server.runtime.box_network import BoxNetwork, Network

ORDER: tuple[Network, ...] = ("none", "allowlist", "open", "bridge")
"""From the least to the most."""
PROXIED = ("allowlist", "open")


@dataclass(frozen=True, kw_only=True)
class NetworkTerms:
    """The network of a session."""

    mode: Network = "none"
    rules: RuleSet = field(default_factory=RuleSet, compare=False)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its box, besides those that every box of the mode has."""
    files: Mapping[str, str] = field(default_factory=dict)

    def told(self) -> tuple[Network, list[str]]:
        """The mode as the session's caller sees it, and what can be reached where that is a
        list."""
        narrowing = self.rules.narrowing
        if not self.proxied or narrowing is None or not narrowing.denies_all:
            return self.mode, self.rules.texts if self.mode == "allowlist" else []
        return ("none", []) if narrowing.nothing else ("allowlist", self.rules.texts)

    @property
    def proxied(self) -> bool:
        return self.mode in PROXIED

    def box(self) -> BoxNetwork:
        return BoxNetwork(mode=self.mode, env=self.env, files=self.files)


def narrowed(terms: NetworkTerms, egress_rules: EgressRules | None) -> NetworkTerms:
    """The network of a session by other rules of its caller, which never add to the operator's.
    Raises InvalidRequest for rules that cannot be had here."""
    narrowing = narrowing_of(egress_rules)
    if narrowing is not None:
        _check(terms, narrowing)
    return replace(terms, rules=terms.rules.narrowed(narrowing))


def _check(terms: NetworkTerms, narrowing: Narrowing) -> None:
    """Raises InvalidRequest for rules of a caller that would be kept in no way."""
    if terms.mode == "bridge":
        raise InvalidRequest(
            "egress_rules: what a session reaches over a bridge is not judged by the server: ask"
            " for the network open or allowlist"
        )
    if terms.mode == "none":
        if narrowing.texts:
            raise InvalidRequest(
                f"egress_rules.allow: {narrowing.texts[0]!r} cannot be reached: sessions have no"
                " network here; the operator gives them one with SANDBOX_NETWORK, or with an"
                " environment"
            )
        return
    for name in narrowing.names:
        if not (terms.rules.open or any(_overlap(name, rule.host) for rule in terms.rules.rules)):
            raise InvalidRequest(
                f"egress_rules.allow: {name!r} is not among what the operator allows."
                f" {terms.rules.narrowed(None).told()}"
            )
    for network in narrowing.allowed:
        address = network.network_address
        named = any(rule.names(address) for rule in terms.rules.rules)
        if network.num_addresses == 1 and not (is_public(address) or named):
            raise InvalidRequest(
                f"egress_rules.allow: {address} is not a public address, and the operator has not"
                " named it"
            )


def _overlap(name: str, host: str) -> bool:
    """Whether a host may be meant by both."""
    return bool(host) and (
        name == host
        or is_named(name.removeprefix("*."), host)
        or is_named(host.removeprefix("*."), name)
    )


@dataclass(frozen=True, kw_only=True)
class NetworkModes:
    default: Network = "none"
    most: Network | None = None
    """None: the default, or what the environment has."""
    providers: Mapping[str, frozenset[Network]] = field(default_factory=dict)
    """What the boxes of each provider can have; those that are left out, anything."""

    def granted(
        self, asked: Network | None, declared: Environment | None, provider: str
    ) -> Network:
        """Raises InvalidRequest."""
        own = None if declared is None else declared.network
        usual = own or self.default
        there = self.providers.get(provider, frozenset(ORDER))
        if own is not None and self.most is not None and _more(own, self.most):
            raise InvalidRequest(
                f"environment {declared.name if declared else ''!r} has the network {own!r}, more"
                f" than SANDBOX_MAX_NETWORK={self.most}: change one of them"
            )
        if asked is None:
            return usual if usual in there else "none"
        most = self.most or _higher(usual, self.default)
        if _more(asked, most):
            raise InvalidRequest(
                f"network: {asked} is more than a session may have, {most}: ask for less, or raise"
                " SANDBOX_MAX_NETWORK of the server"
            )
        if asked not in there:
            raise InvalidRequest(
                f"network: {provider} boxes cannot have {asked!r}; there is"
                f" {', '.join(mode for mode in ORDER if mode in there)}"
            )
        return asked

    def still(self, recorded: Network, declared: Environment | None) -> Network:
        """What a session of an earlier process may go on with."""
        own: Network = (declared and declared.network) or "none"
        most = self.most or _higher(own, self.default)
        return most if _more(recorded, most) else recorded


def _more(one: Network, other: Network) -> bool:
    return ORDER.index(one) > ORDER.index(other)


def _higher(one: Network, other: Network) -> Network:
    return one if _more(one, other) else other
