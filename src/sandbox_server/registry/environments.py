"""An environment: what a box has in it, and what it may use."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sandbox_sdk.protocol.models import (
    USER,
    CommandTimeout,
    Cpus,
    Disk,
    Env,
    IdleTimeout,
    Memory,
    NetworkMode,
    Pids,
)

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Reachable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*_.:/\[\]-]{1,300}$")]
UserName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,30}$")]
Home = Annotated[str, StringConstraints(pattern=r"^/home/[a-z_][a-z0-9_.-]{0,62}$")]
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""Of an object of a cluster."""
LabelKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
    ),
]
LabelValue = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$")
]
_TAKEN = frozenset({"root", "nobody"})
PIP, NPM, APT = "pip", "npm", "apt"


class Declared(BaseModel):
    """Anything that a file of the registry declares. A misspelled field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Packages(Declared):
    """Installed once, when the environment is built, not in every box."""

    pip: tuple[str, ...] = Field((), description="Requirements as pip reads them.")
    npm: tuple[str, ...] = Field((), description="Packages as `npm install` takes them.")
    apt: tuple[str, ...] = Field((), description="Debian packages. Only where boxes have an image.")


class BoxLimits(Declared):
    """Limits of a box. What is left out is the server's default."""

    memory: Memory | None = None
    cpus: Cpus | None = None
    pids: Pids | None = None
    disk: Disk | None = None
    command_timeout: CommandTimeout | None = None
    idle_timeout: IdleTimeout | None = None


class Gpus(Declared):
    """A number alone is the count."""

    count: int = Field(1, ge=1)
    shared: bool = Field(False, description="Whether several boxes may have the same GPU.")

    @model_validator(mode="before")
    @classmethod
    def _from_count(cls, given: Any) -> Any:
        return {"count": given} if type(given) is int else given


class Toleration(Declared):
    """As in a pod."""

    key: str | None = Field(None, max_length=317)
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = Field(None, alias="tolerationSeconds")


class Pods(Declared):
    """Where the pods of an environment run, besides what the server's settings say of all pods."""

    priority_class: ObjectName | None = Field(
        None, description="PriorityClass of the cluster. Left out: that of the server."
    )
    runtime_class: ObjectName | None = Field(
        None, description="RuntimeClass: gVisor's, Kata's. Left out: that of the server."
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        description="Labels that a node has to have, besides those of the server's settings.",
    )
    tolerations: tuple[Toleration, ...] = Field(
        (), description="Taints that they tolerate, besides those of the server's settings."
    )


class Kernels(Declared):
    """The Jupyter kernels of an environment, by language."""

    warm: tuple[str, ...] = Field((), description="Languages whose kernel is started ahead.")
    languages: dict[str, str] = Field(
        default_factory=dict, description="Kernel names by language: `python: python3`."
    )


class Environment(Declared):
    name: Name
    description: str = ""
    provider: str | None = Field(
        None, description="The runtime that it needs. Left out: the one of the session."
    )
    image: str | None = Field(None, description="Docker image.")
    dockerfile: str | None = Field(None, description="Built once; relative to this file.")
    template: str | None = Field(None, description="E2B template.")
    packages: Packages = Packages()
    user: UserName = Field(USER, description="Who commands run as, without root.")
    home: Home | None = Field(None, description="Of the user. Left out: /home/ and its name.")
    env: Env = Field(default_factory=dict)
    files: dict[str, str] = Field(
        default_factory=dict, description="Contents by path, in every new box."
    )
    setup: tuple[str, ...] = Field((), description="Commands that every new box runs once.")
    limits: BoxLimits = BoxLimits()
    network: NetworkMode | None = Field(
        None, description="none, allowlist, open or bridge. Left out: that of the server."
    )
    allow: tuple[Reachable, ...] | None = Field(
        None,
        description="Hosts, addresses and presets that it can reach with `network: allowlist`. "
        "Left out: SANDBOX_NETWORK_ALLOW.",
    )
    policy: str | None = None
    persist: bool = False
    warm: int = Field(0, ge=0, description="Boxes kept warm.")
    kernels: Kernels = Kernels()
    gpus: Gpus | None = None
    pods: Pods | None = Field(None, description="Where its boxes run, on kubernetes.")

    @model_validator(mode="after")
    def _is_free(self) -> Self:
        if self.user in _TAKEN:
            raise ValueError(f"user: {self.user!r} is a name of the system; choose another")
        return self

    @property
    def home_folder(self) -> str:
        return self.home or f"/home/{self.user}"
