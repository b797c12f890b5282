"""Networks: the networks that sessions of this server can have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from weakref import WeakSet

import structlog

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import EgressRules
from sandbox_server.network.dialing import Dialer, Resolver, SystemResolver
from sandbox_server.network.egress import Egress, Report, Subject, log_note
from sandbox_server.network.hosts import InvalidHost
from sandbox_server.network.indexes import APT_ENV, APT_FILES, Indexes, read_indexes
from sandbox_server.network.modes import NetworkModes, NetworkTerms, narrowed
from sandbox_server.network.narrowing import narrowing_of
from sandbox_server.network.outbound import EgressLimits
from sandbox_server.network.rules import Rule, RuleSet, parse_rule
from sandbox_server.registry.environments import Environment
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.box_network import Network

log = structlog.get_logger()

INDEXES = "indexes"
_ALLOW = "SANDBOX_NETWORK_ALLOW"


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
        self.problem = ""
        """What is wrong with the files of the presets as they are now; empty if nothing is."""
        self._allow = tuple(allow)
        self._presets = dict(presets or {})
        self._built: dict[tuple[str, ...], tuple[Rule, ...]] = {}
        """The rules of each list of names; by the presets as they are."""
        self._serving: WeakSet[Egress] = WeakSet()
        self._limits = limits or EgressLimits()
        self._resolver = resolver or SystemResolver()
        self._dialer = Dialer(self._resolver)
        self._report = report
        self._read_indexes = indexes
        self._indexes: Indexes | None = None
        self.check(self._allow, _ALLOW)

    def __repr__(self) -> str:
        return f"<Networks {self.modes.default}, {len(self._presets)} presets>"

    def close(self) -> None:
        self._resolver.close()

    def warm(self, environments: Iterable[Environment] = ()) -> None:
        """Read what takes a while, where it is needed. Blocks."""
        named = [self._allow, *(each.allow or () for each in environments)]
        if any(INDEXES in allow for allow in named):
            self._known_indexes()

    def use_presets(self, presets: Mapping[str, Sequence[Rule]]) -> None:
        """From now on, also for sessions that run. Raises InvalidRequest, and then nothing has
        changed."""
        before, self._presets = self._presets, dict(presets)
        try:
            self.check(self._allow, _ALLOW)
        except InvalidRequest:
            self._presets = before
            raise
        self._built.clear()
        for egress in self._serving:
            egress.cut()

    def check(self, allow: Sequence[str], where: str) -> None:
        """Raises InvalidRequest if a name is neither a preset nor a host. where: what has it."""
        for name in allow:
            if name != INDEXES and name not in self._presets:
                self._rule(name, where)

    def terms(self, mode: Network, declared: Environment | None) -> NetworkTerms:
        """What a session with this network has. Raises InvalidRequest."""
        if mode not in ("allowlist", "open"):
            return NetworkTerms(mode=mode)
        allow, where = self._allow, _ALLOW
        if declared is not None and declared.allow is not None:
            allow, where = declared.allow, f"allow of environment {declared.name!r}"
        self.check(allow, where)
        found = self._known_indexes() if INDEXES in allow else Indexes()
        return NetworkTerms(
            mode=mode,
            rules=RuleSet(latest=partial(self._latest, allow), open_=mode == "open"),
            env={**APT_ENV, **found.env},
            files={**APT_FILES, **found.files},
        )

    def granted(
        self,
        asked: Network | None,
        declared: Environment | None,
        provider: str,
        egress_rules: EgressRules | None = None,
    ) -> NetworkTerms:
        """The network of a new session. Raises InvalidRequest."""
        mode = self.modes.granted(asked, declared, provider)
        narrowing = narrowing_of(egress_rules)
        if mode == "bridge" and asked is None and narrowing is not None and narrowing.nothing:
            mode = "none"
        return narrowed(self.terms(mode, declared), egress_rules)

    def serve(
        self,
        agent: BoxAgent,
        terms: NetworkTerms,
        subject: Subject,
        *,
        meet: Callable[[], Awaitable[None]],
        used_today: int = 0,
        spent: Callable[[], str] = str,
    ) -> Egress:
        """The egress of a session, started. Close it. used_today: see Meter; spent: see Egress."""
        egress = Egress(
            agent,
            terms.rules,
            subject,
            limits=self._limits,
            dialer=self._dialer,
            report=self._report,
            meet=meet,
            used_today=used_today,
            spent=spent,
        )
        self._serving.add(egress)
        egress.start()
        return egress

    def _latest(self, allow: tuple[str, ...]) -> tuple[Rule, ...]:
        if allow not in self._built:
            self._built[allow] = tuple(rule for name in allow for rule in self._rules(name))
        return self._built[allow]

    def _rules(self, name: str) -> Sequence[Rule]:
        if name in self._presets:
            return self._presets[name]
        if name == INDEXES:
            return self._known_indexes().rules
        try:
            return [self._rule(name, _ALLOW)]
        except InvalidRequest:  # Its environment could name it once.
            log.warning("presets.gone", preset=name, allows="nothing")
            return ()

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
