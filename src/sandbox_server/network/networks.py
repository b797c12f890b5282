"""Networks: the networks that sessions of this server can have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.network.dialing import Dialer
from sandbox_server.network.egress import Egress, Report, Subject, log_note
from sandbox_server.network.hosts import InvalidHost
from sandbox_server.network.indexes import Indexes, read_indexes
from sandbox_server.network.metering import EgressLimits
from sandbox_server.network.modes import NetworkModes, NetworkTerms
from sandbox_server.network.resolving import Resolver, SystemResolver
from sandbox_server.network.rules import Rule, RuleSet, parse_rule
from sandbox_server.registry.environments import Environment
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.box_network import Network

INDEXES = "indexes"


class Networks:
    """Close it."""

    def __init__(
        self,
        modes: NetworkModes | None = None,
        *,
        allow: Sequence[str] = (),
        presets: Mapping[str, Sequence[Rule]] | None = None,
        limits: EgressLimits | None = None,
        resolver: Resolver | None = None,
        report: Report = log_note,
        indexes: Callable[[], Indexes] = read_indexes,
    ) -> None:
        """allow: of sessions whose environment does not say. report: called with every
        connection. Raises InvalidRequest for an entry of allow that means nothing."""
        self.modes = modes or NetworkModes()
        self._allow = tuple(allow)
        self._presets = dict(presets or {})
        self._limits = limits or EgressLimits()
        self._resolver = resolver or SystemResolver()
        self._dialer = Dialer(self._resolver)
        self._report = report
        self._read_indexes = indexes
        self._indexes: Indexes | None = None
        self.check(self._allow, "SANDBOX_NETWORK_ALLOW")

    def __repr__(self) -> str:
        return f"<Networks {self.modes.default}, {len(self._presets)} presets>"

    def close(self) -> None:
        self._resolver.close()

    def warm(self, environments: Iterable[Environment] = ()) -> None:
        """Read what takes a while, where it is needed. Blocks."""
        named = [self._allow, *(each.allow or () for each in environments)]
        if any(INDEXES in allow for allow in named):
            self._known_indexes()

    def check(self, allow: Sequence[str], where: str) -> None:
        """Raises InvalidRequest if a name is neither a preset nor a host. where: what has it."""
        for name in allow:
            if name != INDEXES and name not in self._presets:
                self._rule(name, where)

    def terms(self, mode: Network, declared: Environment | None) -> NetworkTerms:
        """What a session with this network has. Raises InvalidRequest."""
        if mode not in ("allowlist", "open"):
            return NetworkTerms(mode=mode)
        allow, where = self._allow, "SANDBOX_NETWORK_ALLOW"
        if declared is not None and declared.allow is not None:
            allow, where = declared.allow, f"allow of environment {declared.name!r}"
        rules = [rule for name in allow for rule in self._rules(name, where)]
        found = self._known_indexes() if INDEXES in allow else Indexes()
        return NetworkTerms(
            mode=mode,
            rules=RuleSet(rules, open_=mode == "open"),
            env=found.env,
            files=found.files,
        )

    def granted(
        self, asked: Network | None, declared: Environment | None, provider: str
    ) -> NetworkTerms:
        """The network of a new session. Raises InvalidRequest."""
        return self.terms(self.modes.granted(asked, declared, provider), declared)

    def serve(
        self,
        agent: BoxAgent,
        terms: NetworkTerms,
        subject: Subject,
        *,
        meet: Callable[[], Awaitable[None]],
        used_today: int = 0,
    ) -> Egress:
        """The egress of a session, started. Close it. used_today: see Meter."""
        egress = Egress(
            agent,
            terms.rules,
            subject,
            limits=self._limits,
            dialer=self._dialer,
            report=self._report,
            meet=meet,
            used_today=used_today,
        )
        egress.start()
        return egress

    def _rules(self, name: str, where: str) -> Sequence[Rule]:
        if name in self._presets:
            return self._presets[name]
        if name == INDEXES:
            return self._known_indexes().rules
        return [self._rule(name, where)]

    def _rule(self, name: str, where: str) -> Rule:
        if not any(mark in name for mark in ".:/"):
            known = [INDEXES, *self._presets]
            near = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise InvalidRequest(
                f"{where}: no preset {name!r}; {near}. A host without a dot needs its port:"
                f" {name}:443"
            )
        try:
            return parse_rule(name)
        except InvalidHost as exc:
            raise InvalidRequest(f"{where}: {exc}") from None

    def _known_indexes(self) -> Indexes:
        if self._indexes is None:
            self._indexes = self._read_indexes()
        return self._indexes
