"""Settings: read once from the environment, validated, then frozen.

Every name has the prefix SANDBOX_; the plain names of earlier versions (POOL_SIZE, PORT, WORKER_ID
and so on) are accepted too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import COMMAND_TIMEOUT_S, MAX_TIMEOUT_S
from sandbox_server import __version__
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.private import state_folder
from sandbox_server.runtime.base import BoxSpec, Limits
from sandbox_server.runtime.registry import AUTO, RuntimeOptions, unknown

DEADMAN_MARGIN_S = 300.0


def _size(value: Any) -> Any:
    """Accept units: `512m`, `1g`."""
    if isinstance(value, str):
        text = value.strip().lower().removesuffix("ib").removesuffix("b")
        units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
        if text[-1:] in units:
            try:
                return int(float(text[:-1]) * units[text[-1]])
            except OverflowError:
                raise ValueError(f"size {value} is too large") from None
        return text
    return value


def _listed(value: Any) -> Any:
    """Split at commas."""
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return value


Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]


def _plain(name: str, default: Any, **options: Any) -> Any:
    """A field that can also be set without the prefix."""
    choices = AliasChoices(f"SANDBOX_{name}", name)
    return Field(default, validation_alias=choices, **options)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SANDBOX_", frozen=True, extra="ignore", populate_by_name=True
    )

    role: Literal["standalone", "worker", "coordinator"] = "standalone"
    host: str = "127.0.0.1"
    port: int | None = _plain("PORT", None, ge=0, le=65535)
    """Default 8000, for a worker 5000."""
    worker_id: str = _plain("WORKER_ID", "", pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,63})?$")
    state_dir: Path | None = None
    runtime: str = AUTO
    docker_runtime: str | None = None
    image: str = "sandbox-secure:latest"
    environments: dict[str, str] = Field(default_factory=dict)
    """Images that callers can choose, by name."""

    pool_size: int = _plain("POOL_SIZE", 5, ge=0)
    min_pool_size: int = _plain("MIN_POOL_SIZE", 2, ge=0)
    max_pool_size: int = _plain("MAX_POOL_SIZE", 20, ge=0)
    max_sessions: int = Field(200, ge=1)

    idle_timeout: float = Field(1800.0, gt=0)
    command_timeout: float = Field(COMMAND_TIMEOUT_S, gt=0, le=MAX_TIMEOUT_S)
    memory_limit: Size = _plain("MEMORY_LIMIT", 512 << 20)
    cpu_limit: float = Field(0.5, gt=0)
    pids_limit: int = Field(256, ge=16)
    disk_limit: Size = 1 << 30
    network: Literal["none", "bridge"] = "none"
    output_limit: Size = 1 << 20
    max_upload: Size = 100 << 20

    policy: str = "default"
    """What commands may run: a built-in set (default, strict, open) or the path of a rule file."""
    policies: dict[str, str] = Field(default_factory=dict)
    """Policies of environments that override `policy`, by name."""
    audit_log: Path | None = None
    """File for every verdict with the text of its command."""
    redis_url: SecretStr | None = _plain("REDIS_URL", None)
    redis_host: str | None = _plain("REDIS_HOST", None)
    redis_port: int = _plain("REDIS_PORT", 6379, ge=1, le=65535)
    redis_namespace: str = Field("sandbox", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    workers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = _plain("WORKERS", ())
    """The workers a coordinator may use. Empty: all that register."""
    advertise: str = ""
    """URL at which coordinators reach this worker."""
    fleet_key: SecretStr = SecretStr("")
    """Key that coordinators send to workers."""
    lease: float = Field(10.0, ge=0.3, le=3600)
    grace: float = Field(20.0, ge=0)
    patience: float = Field(30.0, ge=0)

    api_keys: Annotated[SecretStr, NoDecode] = SecretStr("")
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = ()
    """Further host names that a server without keys accepts; `*` for any."""
    insecure: bool = False
    destroy_on_exit: bool = False
    drain_timeout: float = Field(20.0, ge=0)
    log_format: Literal["auto", "json", "console"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _pool_order(self) -> Settings:
        if not self.min_pool_size <= self.pool_size <= self.max_pool_size:
            raise ValueError(
                "MIN_POOL_SIZE <= POOL_SIZE <= MAX_POOL_SIZE does not hold:"
                f" {self.min_pool_size}, {self.pool_size}, {self.max_pool_size}; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _no_open_door(self) -> Settings:
        worker = self.role == "worker"
        keys = self.fleet_key if worker else self.api_keys
        if not (self.insecure or keys.get_secret_value() or _is_loopback(self.host)):
            name = "SANDBOX_FLEET_KEY=…" if worker else "SANDBOX_API_KEYS=tenant:key,…"
            raise ValueError(
                f"listening on {self.host} without keys: set {name} or pass --insecure"
            )
        return self

    @model_validator(mode="after")
    def _fleet_has_redis(self) -> Settings:
        if self.role != "standalone" and not self.redis():
            raise ValueError(f"a {self.role} needs SANDBOX_REDIS_URL=redis://…")
        return self

    @field_validator("runtime")
    @classmethod
    def _known_runtime(cls, name: str) -> str:
        if why := unknown(name):
            raise ValueError(why)
        return name

    def runtime_options(self) -> RuntimeOptions:
        return RuntimeOptions(state_dir=self.state_folder(), engine_runtime=self.docker_runtime)

    def limits(self) -> Limits:
        return Limits(
            memory_bytes=self.memory_limit,
            cpus=self.cpu_limit,
            pids=self.pids_limit,
            disk_bytes=self.disk_limit,
        )

    def box_spec(self, owner: str) -> BoxSpec:
        return BoxSpec(
            owner=owner,
            image=self.image,
            limits=self.limits(),
            network=self.network,
            deadman_s=self.idle_timeout + DEADMAN_MARGIN_S,
        )

    def pool(self) -> PoolSettings:
        return PoolSettings(
            size=self.pool_size, min_size=self.min_pool_size, max_size=self.max_pool_size
        )

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

    def name(self) -> str:
        return self.worker_id or f"{socket.gethostname()}-{self.listening_port()}"

    def in_force(self) -> dict[str, Any]:
        """All settings as JSON values, with keys hidden."""
        return {"version": __version__, **dict(sorted(self.model_dump(mode="json").items()))}


def load(**overrides: Any) -> Settings:
    """Read the settings. Raises InvalidRequest with a one-line message for invalid values."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except SettingsError as exc:
        field = re.search(r'field "(\w+)"', str(exc))
        name = field[1].upper() if field else "…"
        raise InvalidRequest(f"SANDBOX_{name}: Input should be valid JSON") from None
    except ValidationError as exc:
        problems = "; ".join(_problem(error) for error in exc.errors(include_url=False))
        raise InvalidRequest(problems) from None


def _problem(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if not place:
        return message
    name = place if place.isupper() else f"SANDBOX_{place.upper()}"
    return f"{name}: {message}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
