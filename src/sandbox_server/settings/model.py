"""The settings: read once from the environment, validated, then frozen.

Every name has the prefix SANDBOX_; the plain names of earlier versions (POOL_SIZE, PORT, WORKER_ID
and so on) are accepted too.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import PrivateAttr, ValidationInfo, field_validator, model_validator

from sandbox_sdk.units import size_text
from sandbox_server import __version__
from sandbox_server.audit.log import AuditSettings
from sandbox_server.checkpoints.opening import StoreSettings
from sandbox_server.network.modes import ORDER
from sandbox_server.network.outbound import EgressLimits
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.private import state_folder
from sandbox_server.runtime.base import BoxSpec, Limits
from sandbox_server.runtime.registry import AUTO, ClusterOptions, RuntimeOptions, unknown
from sandbox_server.sessions.preview_address import PreviewAddress
from sandbox_server.settings.declared import DeclaredSettings
from sandbox_server.settings.fields import PREFIX
from sandbox_server.settings.limit_rules import LimitRules
from sandbox_server.storage.history import Kept
from sandbox_server.storage.storage import StorageLimits
from sandbox_server.usage.budgets import Budgets
from sandbox_server.usage.ledger import Retention
from sandbox_server.usage.prices import Prices
from sandbox_server.volumes.binding import BindFolders

DEADMAN_MARGIN_S = 300.0
_LAST_PORT = 65535
ANY_FOLDER = "*"
"""In the place of a list of folders, all of them: nobody can set this, but in-process it is so."""
_HOST_NAME = re.compile(r"\*|[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_ORDER = (
    ("memory_limit", "max_memory"),
    ("cpu_limit", "max_cpus"),
    ("pids_limit", "max_pids"),
    ("disk_limit", "max_disk"),
    ("memory_limit", "total_memory"),
    ("max_memory", "total_memory"),
)
_PARSED: dict[str, Callable[[Any], object]] = {
    "preview_url": PreviewAddress.parse,
    "prices": Prices.parse,
    "budgets": Budgets.parse,
    "bind_folders": BindFolders.parse,
}


class Settings(DeclaredSettings):
    _in_code: frozenset[str] = PrivateAttr(frozenset())
    """Settings given as arguments: by a program, or as options of the command line."""

    @model_validator(mode="after")
    def _pool_order(self) -> Settings:
        """Sizes that were not set follow those that were."""
        size, least, most = _pool_sizes(self)
        if not least <= size <= most:
            names = ("min_pool_size", "pool_size", "max_pool_size")
            values = ", ".join(
                f"{variable_of(name)}={getattr(self, name)}"
                for name in names
                if name in self.model_fields_set
            )
            raise ValueError(
                f"the least, usual and most number of warm boxes contradict each other: {values};"
                " change one of them"
            )
        # Not through model_fields_set: they still count as not set.
        vars(self).update(pool_size=size, min_pool_size=least, max_pool_size=most)
        return self

    @model_validator(mode="after")
    def _no_open_door(self) -> Settings:
        """Of others than workers, check_settings looks for stored keys too."""
        if self.role == "worker" and self.is_reachable() and not self.fleet_key.get_secret_value():
            raise ValueError(
                f"listening on {self.host} without keys: set SANDBOX_FLEET_KEY=… or pass --insecure"
            )
        return self

    def is_reachable(self) -> bool:
        """By others than this machine, which the operator has not said to be meant."""
        return not (self.insecure or _is_loopback(self.host))

    @model_validator(mode="after")
    def _limits_can_be_read(self) -> Settings:
        try:
            LimitRules.parse(self.tenant_limits)
        except ValueError as exc:
            raise ValueError(f"SANDBOX_TENANT_LIMITS: {exc}") from None
        return self

    @model_validator(mode="after")
    def _fleet_has_redis(self) -> Settings:
        if self.role != "standalone" and not self.redis():
            raise ValueError(f"a {self.role} needs SANDBOX_REDIS_URL=redis://…")
        return self

    @model_validator(mode="after")
    def _hands_over_pods(self) -> Settings:
        if self.hand_over and set(self.provider_names()) != {"kubernetes"}:
            raise ValueError(
                f"{variable_of('hand_over')}: boxes of {', '.join(self.provider_names())} stay on"
                " their machine, and no other worker can take them over: unset it, or use the"
                " runtime kubernetes alone"
            )
        return self

    @model_validator(mode="after")
    def _policies_of_environments(self) -> Settings:
        if strange := sorted(self.policies.keys() - self.environments.keys()):
            raise ValueError(
                f"SANDBOX_POLICIES: {strange[0]!r} is not in SANDBOX_ENVIRONMENTS: add it there"
                " with an image, or remove its policy"
            )
        return self

    @model_validator(mode="after")
    def _one_default(self) -> Settings:
        first = self.providers[0] if self.providers else self.runtime
        if "runtime" in self.model_fields_set and first != self.runtime != AUTO:
            raise ValueError(
                f"{variable_of('runtime')}={self.runtime} is not the first of"
                f" {variable_of('providers')}={','.join(self.providers)}, which is the default:"
                " unset it, or write it first"
            )
        return self

    @model_validator(mode="after")
    def _limits_in_order(self) -> Settings:
        """No session has more than the maximum, or than all of them together. A limit that was not
        set follows."""
        for least, most in _ORDER:
            low, high = getattr(self, least), getattr(self, most)
            if low is None or high is None or low <= high:
                continue
            if least in self.model_fields_set:
                shown = [f"{variable_of(name)}={_limit_text(self, name)}" for name in (least, most)]
                raise ValueError(f"{shown[0]} is more than {shown[1]}: change one of them")
            vars(self).update({least: high})  # Not through model_fields_set, as above.
        return self

    @model_validator(mode="after")
    def _networks_in_order(self) -> Settings:
        if self.max_network is not None and ORDER.index(self.network) > ORDER.index(
            self.max_network
        ):
            raise ValueError(
                f"{variable_of('network')}={self.network} is more than"
                f" {variable_of('max_network')}={self.max_network}: change one of them"
            )
        return self

    @field_validator("runtime")
    @classmethod
    def _known_runtime(cls, name: str) -> str:
        if why := unknown(name):
            raise ValueError(why)
        return name

    @field_validator("providers")
    @classmethod
    def _known_providers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name == AUTO:
                raise ValueError(f"{AUTO} is no provider: name them, the default one first")
            if why := unknown(name):
                raise ValueError(why)
        return tuple(dict.fromkeys(names))

    @field_validator("allowed_hosts")
    @classmethod
    def _host_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not (_HOST_NAME.fullmatch(name) or _is_address(name)):
                raise ValueError(f"{name!r} is not a host name: leave out scheme, port and path")
        return names

    @field_validator("advertise", "workers")
    @classmethod
    def _urls(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for url in (value,) if isinstance(value, str) else value:
            if url and not _is_http_url(url):
                raise ValueError(f"{url!r} is not a URL: write http://host:port")
        return value

    @field_validator(*_PARSED)
    @classmethod
    def _can_be_parsed(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        if value:
            _PARSED[info.field_name](value)
        return value

    def binds(self) -> BindFolders:
        """The folders of this machine that boxes may have."""
        if self.bind_folders == (ANY_FOLDER,):
            return BindFolders(any_=True)
        return BindFolders.parse(self.bind_folders)

    def variable(self, name: str) -> str:
        """The name by which somebody has set a setting, or would."""
        if name in self._in_code:
            return name
        return variable_of(name)

    def runtime_options(self) -> RuntimeOptions:
        key = self.e2b_api_key
        return RuntimeOptions(
            state_dir=self.state_folder(),
            engine_runtime=self.docker_runtime,
            e2b_api_key=None if key is None else key.get_secret_value(),
            e2b_api_url=self.e2b_api_url,
            e2b_sandbox_url=self.e2b_sandbox_url,
            e2b_domain=self.e2b_domain,
            e2b_template=self.e2b_template,
            kubernetes=ClusterOptions(
                kubeconfig=self.kubernetes_kubeconfig,
                namespace=self.kubernetes_namespace,
                runtime_class=self.kubernetes_runtime_class,
                node_selector=self.kubernetes_node_selector,
                tolerations=self.kubernetes_tolerations,
                priority_class=self.kubernetes_priority_class,
                pull_secret=self.kubernetes_pull_secret,
                requests=self.kubernetes_requests,
                placement_s=self.kubernetes_placement,
                eviction_s=self.kubernetes_eviction,
                shared=self.role == "worker",
                stream=self.kubernetes_stream,
                warm_pool=self.kubernetes_warm_pool,
                warm_limits=self.limits(),
            ),
        )

    def limits(self) -> Limits:
        return Limits(
            memory_bytes=self.memory_limit,
            cpus=self.cpu_limit,
            pids=self.pids_limit,
            disk_bytes=self.disk_limit,
        )

    def provider_names(self) -> tuple[str, ...]:
        """The default one first; it may be auto."""
        return self.providers or (self.runtime,)

    def most(self) -> dict[str, float]:
        """The limits up to which a session can ask, as far as they are set."""
        found = {
            "memory": self.max_memory,
            "cpus": self.max_cpus,
            "pids": self.max_pids,
            "disk": self.max_disk,
        }
        return {name: value for name, value in found.items() if value is not None}

    def box_spec(self, owner: str) -> BoxSpec:
        return BoxSpec(
            owner=owner,
            image=self.image,
            limits=self.limits(),
            network=self.network,
            deadman_s=self.idle_timeout + DEADMAN_MARGIN_S,
        )

    def audit(self) -> AuditSettings:
        return AuditSettings(
            commands=self.audit_commands,
            full=self.audit_full,
            size=self.audit_size,
            count=self.audit_files,
        )

    def egress_limits(self) -> EgressLimits:
        return EgressLimits(
            connections=self.network_connections,
            bytes_a_day=self.network_bytes,
            bytes_a_second=self.network_rate,
        )

    def pool(self) -> PoolSettings:
        return PoolSettings(
            size=self.pool_size, min_size=self.min_pool_size, max_size=self.max_pool_size
        )

    def stored(self) -> StorageLimits:
        return StorageLimits(
            history=Kept(
                retention_s=self.history_retention,
                sessions=self.history_sessions,
                commands=self.history_commands,
            ),
            artifact_quota=self.artifact_quota,
            artifact_retention_s=self.artifact_retention,
        )

    def checkpoint_store(self) -> StoreSettings:
        return StoreSettings(
            where=self.checkpoints,
            quota=self.checkpoint_quota,
            retention_s=self.checkpoint_retention,
        )

    def usage_kept(self) -> Retention:
        return Retention(days=self.usage_days, detail_days=self.usage_detail_days)

    def priced(self) -> Prices:
        return Prices.parse(self.prices)

    def budgeted(self) -> Budgets:
        return Budgets.parse(self.budgets)

    def state_folder(self) -> Path:
        """For files that must survive a restart."""
        return self.state_dir or state_folder()

    def redis(self) -> str:
        """URL of the fleet's registry; may be empty."""
        if self.redis_url is not None:
            return self.redis_url.get_secret_value()
        return f"redis://{self.redis_host}:{self.redis_port}/0" if self.redis_host else ""

    def listening_port(self) -> int:
        if self.port is not None:
            return self.port
        return 5000 if self.role == "worker" else 8000

    def previews_port(self, api_port: int) -> int:
        """The port for previews. api_port: the one at which the server listens."""
        if self.preview_port is not None:
            return self.preview_port
        return api_port + 1 if self.listening_port() and api_port < _LAST_PORT else 0

    def name(self) -> str:
        return self.worker_id or f"{socket.gethostname()}-{self.listening_port()}"

    def in_force(self) -> dict[str, Any]:
        """All settings as JSON values, with keys hidden."""
        return {"version": __version__, **dict(sorted(self.model_dump(mode="json").items()))}


def _limit_text(given: Settings, name: str) -> str:
    value = getattr(given, name)
    return f"{value:g}" if "cpu" in name or "pids" in name else size_text(value)


def variable_of(name: str) -> str:
    """The variable of a setting: as it is in the environment, with or without the prefix."""
    plain, prefixed = name.upper(), f"{PREFIX}{name.upper()}"
    field = DeclaredSettings.model_fields.get(name)
    has_plain = field is not None and field.validation_alias is not None
    return plain if has_plain and plain in os.environ and prefixed not in os.environ else prefixed


def _pool_sizes(given: Settings) -> tuple[int, int, int]:
    """Size, least and most. What was not set is moved to fit what was."""
    is_set = given.model_fields_set
    size, least, most = given.pool_size, given.min_pool_size, given.max_pool_size
    if "pool_size" not in is_set:
        size = max(size, least) if "min_pool_size" in is_set else size
        size = min(size, most) if "max_pool_size" in is_set else size
    least = least if "min_pool_size" in is_set else min(least, size)
    most = most if "max_pool_size" in is_set else max(most, size)
    return size, least, most


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
