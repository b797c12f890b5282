"""Sessions, and the server that has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Self, TypedDict

from pydantic import Field, model_validator

from sandbox_sdk.protocol.models.base import (
    MAX_LIFETIME_S,
    USER,
    WORKSPACE,
    Env,
    Metadata,
    Model,
    Request,
    Target,
    ThreadId,
    check_metadata,
    utf8_size,
)
from sandbox_sdk.protocol.models.connections import OpenPorts
from sandbox_sdk.protocol.models.limits import MAX_IDLE_TIMEOUT_S, LimitValues, SessionLimits
from sandbox_sdk.protocol.models.registry import AgentInfo
from sandbox_sdk.protocol.models.session_list import END_AT, SessionActivity
from sandbox_sdk.protocol.models.volumes import (
    MAX_VOLUMES,
    MountedVolume,
    VolumeMount,
    check_mounts,
)
from sandbox_sdk.units import seconds

MIN_EVERY_S = 1.0
_COMMANDS = re.compile(r"([1-9][0-9]{0,5}) commands?")
NetworkMode = Literal["none", "allowlist", "open", "bridge"]
"""What a sandbox can reach: nothing, what the operator allows, any public host, or the network of
the server's Docker engine."""
MAX_ENV_BYTES = 128 * 1024
"""Names and values of the variables of a session."""


_Entries = Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=200)]


class EgressRules(Request):
    """What a sandbox may not reach of what its network allows. Allowed counts before denied."""

    allow: _Entries = Field(
        default_factory=list,
        description="Addresses, networks, and names such as `example.com` or `*.example.com`. "
        "Names only where `deny` has `0.0.0.0/0`, which means everything.",
    )
    deny: _Entries = Field(default_factory=list, description="Addresses and networks.")


class EgressRequest(Target):
    allow: _Entries = Field(default_factory=list, description="As in `egress_rules`.")
    deny: _Entries = Field(default_factory=list, description="As in `egress_rules`.")

    def rules(self) -> EgressRules | None:
        """None if nothing is taken away."""
        if not (self.allow or self.deny):
            return None
        return EgressRules(allow=self.allow, deny=self.deny)


class EgressOptions(TypedDict, total=False):
    """EgressRules, as a caller writes it."""

    allow: Sequence[str]
    deny: Sequence[str]


class CreateSessionRequest(Request):
    thread_id: ThreadId | None = Field(None, examples=["conv-42"])
    environment: str | None = Field(
        None,
        max_length=200,
        description="What the box has in it: Python3, Node, Data, or another name out of the "
        "server's registry or SANDBOX_ENVIRONMENTS.",
    )
    agent: str | None = Field(
        None,
        max_length=200,
        description="An agent of the server's registry: the sandbox is as that one has it, and the "
        "answer has its prompt and tools. What is given here besides counts instead of its own.",
    )
    env: Env = Field(default_factory=dict, description="Variables of every command.")
    idle_timeout_s: float | None = Field(
        None, gt=0, le=MAX_IDLE_TIMEOUT_S, description="Left out: the server's idle timeout."
    )
    lifetime_s: float | None = Field(
        None,
        gt=0,
        le=MAX_LIFETIME_S,
        description="Seconds after which it ends, used or not, with what runs in it. Left out: it "
        "lasts as long as it is used. `set_lifetime` changes it.",
    )
    pause_at_end: bool = Field(
        False,
        description="At the end of its lifetime it is paused, instead of ended. Then it has no "
        "lifetime any more.",
    )
    metadata: Metadata = Field(
        default_factory=dict, description="What `sessions` can be searched for.",
        examples=[{"user": "42"}],
    )  # fmt: skip
    provider: str | None = Field(
        None,
        max_length=64,
        description="The runtime that makes the box, out of the server's SANDBOX_PROVIDERS.",
        examples=["docker"],
    )
    limits: SessionLimits = Field(
        SessionLimits(), strict=False, description="Up to what the server allows."
    )
    network: NetworkMode | None = Field(
        None,
        description="What the sandbox can reach, up to what the server allows: `none`, `allowlist` "
        "(the hosts that the operator has named), `open` (any public host), or `bridge` (the "
        "network of a Docker engine). Left out: that of the environment, or the server's.",
    )
    egress_rules: EgressRules | None = Field(
        None,
        description="What it takes away from that: connections to addresses of `deny`, unless "
        "`allow` has them or the name that was asked for. `set_egress` changes it.",
        examples=[{"allow": ["docs.example.com"], "deny": ["0.0.0.0/0"]}],
    )
    ports: OpenPorts | None = Field(
        None,
        description="Every port of the sandbox is a preview from the start, at its URL. Left out: "
        "those alone that `expose` was asked for.",
        examples=[{"public": True}],
    )
    checkpoint_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="The session begins with the files and the shell state of this checkpoint.",
    )
    persist: bool = Field(
        False,
        description="When the session has been idle for too long it is kept as a checkpoint, and "
        "the next call goes on from there.",
    )
    checkpoint_every: str | float | None = Field(
        None,
        description="Take a checkpoint besides: every so many seconds (300, `5m`), or every so "
        "many commands (`20 commands`), if something happened since.",
        examples=["5m"],
    )
    history: bool = Field(
        False,
        description="Keep a point before every command, so that `undo` can go back to it. Only "
        "where the disk of a box can be copied in a moment.",
    )
    volumes: list[VolumeMount] = Field(
        default_factory=list,
        max_length=MAX_VOLUMES,
        description="Folders that outlive the session. Not those of a checkpoint's thread: give "
        "them again.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        size = sum(len(name) + utf8_size(value) for name, value in self.env.items())
        if size > MAX_ENV_BYTES:
            raise ValueError(
                f"env has {size} bytes of names and values, at most {MAX_ENV_BYTES}; upload a file"
                " with the rest"
            )
        check_metadata(self.metadata)
        every_of(self.checkpoint_every)
        check_mounts(self.volumes)
        return self


def every_of(text: str | float | None) -> tuple[float | None, int | None]:
    """Seconds, or a number of commands. Raises ValueError."""
    if text is None:
        return None, None
    if isinstance(text, str) and (counted := _COMMANDS.fullmatch(text)):
        return None, int(counted[1])
    try:
        every_s = seconds(str(text))
    except ValueError:
        every_s = 0.0
    if every_s < MIN_EVERY_S:
        raise ValueError(
            f"checkpoint_every {text!r} is neither a time of at least {MIN_EVERY_S:g} s, such as"
            " 5m, nor a number of commands, such as '20 commands'"
        )
    return every_s, None


class Limits(Model):
    memory_bytes: int
    cpus: float
    pids: int
    disk_bytes: int
    command_timeout_s: float
    output_limit_bytes: int
    upload_limit_bytes: int
    network: str
    network_allow: list[str] = Field(
        default_factory=list,
        description="With the network `allowlist` the hosts that it can reach, at most 100.",
    )
    not_enforced: dict[str, str] = Field(default_factory=dict)

    def with_values(self, values: LimitValues) -> Limits:
        return self.model_copy(
            update={
                "memory_bytes": values["memory"],
                "cpus": values["cpus"],
                "pids": values["pids"],
                "disk_bytes": values["disk"],
                "command_timeout_s": values["command_timeout_s"],
            }
        )

    def values(self) -> LimitValues:
        return {
            "memory": self.memory_bytes,
            "cpus": self.cpus,
            "pids": self.pids,
            "disk": self.disk_bytes,
            "command_timeout_s": self.command_timeout_s,
        }


class Session(Model):
    session_id: str
    thread_id: str
    status: Literal["created", "existing"]
    generation: int
    user: str = Field(USER, description="Who commands run as.")
    home: str = Field(f"/home/{USER}", description="Of the user.")
    workspace: str = WORKSPACE
    worker: str
    runtime: str
    sandbox_id: str = Field("", description="The name of its box.")
    environment: str | None = Field(None, description="Null: the server's default one.")
    metadata: dict[str, str] = Field(default_factory=dict)
    created_at: datetime
    expires_at: datetime = Field(description="If nobody uses it from now on.")
    end_at: datetime | None = Field(None, description=END_AT)
    pause_at_end: bool = Field(False, description="Whether it is paused then, instead of ended.")
    limits: Limits
    agent: AgentInfo | None = Field(None, description="The agent that the session was made for.")
    volumes: list[MountedVolume] = Field(
        default_factory=list, description="Its folders that outlive it."
    )
    ports: OpenPorts | None = Field(None, description="If all of its ports are previews.")
    egress_rules: EgressRules | None = Field(
        None, description="What its caller has taken away from what its network allows."
    )
    not_applied: list[str] = Field(
        default_factory=list,
        description="Fields of this request that differ from what the live session was made with. "
        "To have them, end the session first.",
    )


class RunningCommand(Model):
    command_id: str
    age_s: float
    output_bytes: int


class SessionUsage(Model):
    cpu_s: float
    memory_bytes: int | None
    disk_bytes: int | None
    pids: int


class EgressUsage(Model):
    """What a session has used of its network since its server took it over."""

    connections: int = Field(description="And requests, of those that share a connection.")
    refused: int
    bytes_in: int = Field(description="Into the sandbox.")
    bytes_out: int


class SessionInfo(Session):
    state: SessionActivity
    last_used_at: datetime
    idle_s: float
    commands: int
    running: list[RunningCommand]
    usage: SessionUsage
    egress: EgressUsage | None = Field(
        None, description="Where its connections go through the server."
    )


_ENDED = "Of the session that has ended."


class CleanupResult(Model):
    status: Literal["cleaned up"] = "cleaned up"
    environment: str | None = Field(None, description=_ENDED)
    idle_timeout_s: float | None = Field(None, description=_ENDED)
    agent: str | None = Field(None, description=_ENDED)
    provider: str | None = Field(None, description=_ENDED)
    limits: dict[str, int | float] = Field(
        default_factory=dict,
        description="Of the session that has ended, in the form in which `create_session` takes "
        "them.",
    )
    volumes: list[MountedVolume] = Field(default_factory=list, description=_ENDED)
    network: NetworkMode | None = Field(
        None, description="Of the session that has ended, if it asked for one."
    )
    metadata: dict[str, str] = Field(default_factory=dict, description=_ENDED)
    lifetime_s: float | None = Field(None, description=_ENDED)
    ports: OpenPorts | None = Field(None, description=_ENDED)
    egress_rules: EgressRules | None = Field(None, description=_ENDED)


class WorkerHealth(Model):
    """One worker of a fleet, or one process of a server that has several."""

    worker_id: str
    state: str = Field(description="`serving`, or why it takes no new threads, such as `draining`.")
    runtime: str
    sessions: int
    capacity: int
    warm: int = Field(description="Boxes that are ready.")
    version: str


class Health(Model):
    status: Literal["healthy", "degraded", "unhealthy"]
    role: str
    worker_id: str
    runtime: str
    pool_size: int
    active_sessions: int
    capacity: int
    version: str
    uptime_s: float
    checks: dict[str, str] = Field(description="What was looked at: `ok`, or what is wrong.")
    providers: list[str] = Field(
        default_factory=list,
        description="What a session can ask for as `provider`; the first is the default.",
    )
    checkpoints: str = Field(
        default="", description="Where checkpoints are kept, and in which way; empty if unknown."
    )
    volumes: str = Field(
        default="", description="How volumes are kept, or why there are none; empty if unknown."
    )
    workers: list[WorkerHealth] = Field(
        default_factory=list,
        description="Of a coordinator its workers, of a server with several processes those.",
    )
