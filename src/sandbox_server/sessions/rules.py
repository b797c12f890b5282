"""What a new session gets: its provider, its limits, its network and its idle timeout.

The server has a default for everything, an environment may override it, and a request may override
both, up to the maximum of the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, EgressRules, LimitValues, granted, merged
from sandbox_sdk.protocol.providers import no_provider
from sandbox_server.network.modes import NetworkTerms
from sandbox_server.network.narrowing import narrowing_of
from sandbox_server.network.networks import Networks
from sandbox_server.registry.environments import BoxLimits, Environment
from sandbox_server.runtime.base import USUAL_USER, BoxUser, Enforcement, Limits
from sandbox_server.runtime.box_network import BoxNetwork, Network
from sandbox_server.runtime.registry import installed

_ENFORCED_AS = {"memory": "memory", "cpus": "cpu", "pids": "pids", "disk": "disk"}


@dataclass(frozen=True, kw_only=True)
class SessionTerms:
    provider: str
    limits: LimitValues
    idle_timeout_s: float
    network: NetworkTerms
    user: BoxUser = USUAL_USER


class SessionRules:
    def __init__(
        self,
        *,
        default: LimitValues,
        idle_timeout_s: float,
        providers: Mapping[str, Enforcement],
        most: Mapping[str, float] | None = None,
        total_memory: int | None = None,
        environments: Mapping[str, Environment] | None = None,
        networks: Networks | None = None,
    ) -> None:
        """most: the maxima that the operator has set. Without one, nobody gets more than the
        default or the environment has. providers: the first is the default. total_memory: that of
        all sessions together, so of one, too. networks: without, no session has one."""
        self._networks = networks or Networks()
        self.default = default
        self.providers = providers
        self._idle_timeout_s = idle_timeout_s
        self._most = most or {}
        self._total_memory = total_memory
        self._environments = {} if environments is None else environments

    def terms(
        self,
        *,
        environment: str | None,
        provider: str | None,
        limits: Mapping[str, float],
        idle_timeout_s: float | None,
        network: Network | None = None,
        egress_rules: EgressRules | None = None,
    ) -> SessionTerms:
        """Raises InvalidRequest for an unknown provider, for limits that are above the maximum or
        that the provider does not enforce, and for a network that is not allowed."""
        declared = self._environments.get(environment or "")
        named = self._provider(provider, declared)
        usual = self.usual(environment)
        self._require_effect(named, limits, usual)
        return SessionTerms(
            provider=named,
            limits=granted(limits, default=self.granted(environment), most=self._maximum(usual)),
            idle_timeout_s=idle_timeout_s or self._idle_timeout(declared),
            network=self._networks.granted(network, declared, named, egress_rules),
            user=self.user(environment),
        )

    def user(self, environment: str | None) -> BoxUser:
        """Of the boxes of an environment."""
        declared = self._environments.get(environment or "")
        if declared is None:
            return USUAL_USER
        return BoxUser(name=declared.user, home=declared.home_folder)

    def pool_network(self, environment: str | None, provider: str) -> BoxNetwork:
        """That of the boxes that are made ahead."""
        declared = self._environments.get(environment or "")
        try:
            return self._networks.granted(None, declared, provider).box()
        except InvalidRequest:  # The sessions that ask for such a box are told.
            return BoxNetwork(mode="none")

    def network_again(
        self,
        environment: str | None,
        provider: str,
        recorded: Network | None,
        egress_rules: EgressRules | None = None,
    ) -> NetworkTerms:
        """Of a session of an earlier process. recorded: None by a version that knew none and the
        bridge alone."""
        declared = self._environments.get(environment or "")
        modes = self._networks.modes
        try:
            if recorded is None:
                usual = modes.granted(None, declared, provider)
                recorded = usual if usual == "bridge" else "none"
            terms = self._networks.terms(modes.still(recorded, declared), declared)
            # The operator may allow less by now: what is left of the caller's rules still counts.
            return replace(terms, rules=terms.rules.narrowed(narrowing_of(egress_rules)))
        except InvalidRequest:
            return NetworkTerms()

    def usual(self, environment: str | None) -> LimitValues:
        """The limits in an environment, without those of a request."""
        declared = self._environments.get(environment or "")
        return merged(self.default, {} if declared is None else given_limits(declared.limits))

    def granted(self, environment: str | None) -> LimitValues:
        """The same, as far as the operator allows it. Raises InvalidRequest if it does not."""
        usual = self.usual(environment)
        return granted(
            cast("dict[str, float]", usual), default=self.default, most=self._maximum(usual)
        )

    def _provider(self, asked: str | None, declared: Environment | None) -> str:
        needed = None if declared is None else declared.provider
        if asked and needed and asked != needed:
            assert declared is not None
            raise InvalidRequest(
                f"environment {declared.name!r} needs provider {needed!r}, not {asked!r}: leave"
                " `provider` out"
            )
        name = asked or needed or next(iter(self.providers))
        if name not in self.providers:
            raise no_provider(name, there=list(self.providers), installed=installed())
        return name

    def _maximum(self, usual: LimitValues) -> LimitValues:
        most = {
            name: max(value, cast("dict[str, float]", usual)[name])
            for name, value in cast("dict[str, float]", self.default).items()
        }
        most |= {"command_timeout_s": MAX_TIMEOUT_S, **self._most}
        if self._total_memory is not None:
            most["memory"] = min(most["memory"], self._total_memory)
        return cast("LimitValues", most)

    def _require_effect(
        self, provider: str, limits: Mapping[str, float], usual: LimitValues
    ) -> None:
        lacking = self.providers[provider]
        for name, value in limits.items():
            limit = _ENFORCED_AS.get(name, "")
            if limit in lacking.absent and value != cast("dict[str, float]", usual)[name]:
                raise InvalidRequest(
                    f"limits.{name} has no effect on {provider} boxes here:"
                    f" {lacking.missing()[limit]}; leave it out"
                )

    def _idle_timeout(self, declared: Environment | None) -> float:
        own = None if declared is None else declared.limits.idle_timeout
        return own or self._idle_timeout_s


def limit_values(limits: Limits, *, command_timeout_s: float) -> LimitValues:
    return {
        "memory": limits.memory_bytes,
        "cpus": limits.cpus,
        "pids": limits.pids,
        "disk": limits.disk_bytes,
        "command_timeout_s": command_timeout_s,
    }


def given_limits(limits: BoxLimits) -> dict[str, float]:
    """Those that are declared, in the form of a request."""
    named = limits.model_dump(exclude_none=True, exclude={"idle_timeout", "command_timeout"})
    if limits.command_timeout is not None:
        named["command_timeout_s"] = limits.command_timeout
    return named
