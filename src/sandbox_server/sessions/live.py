"""A live session: its record, its box and when it was last used."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.protocol.errors import SandboxError, SessionLost
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, LimitValues, Resumed
from sandbox_server.checkpoints.points import ThreadPoints
from sandbox_server.network.egress import Egress
from sandbox_server.network.modes import NetworkTerms
from sandbox_server.registry.agents import SessionAgent
from sandbox_server.runtime.agent import BoxAgent, CommandResult
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.box_network import Network
from sandbox_server.sessions.registry import Record, Status

Key = tuple[str, str]
"""Tenant and thread_id."""
_IDENTITY = ("tenant", "thread_id", "generation", "session_id")
SETTLE_S = 30.0
"""How long past its time limit a command may take to end."""
TEXTS = 32
TEXT = 500
"""Commands of a session whose text is remembered, and the characters of each: who looks at it wants
to know what runs."""
WATCHED = 64
"""Most running commands of a box whose end is awaited."""


@dataclass(frozen=True, kw_only=True)
class KeepRules:
    """What is kept of a session by itself."""

    persist: bool = False
    """Its thread goes on after the session has ended."""
    every_s: float | None = None
    every_commands: int | None = None
    history: bool = False
    """A point before every command."""


@dataclass
class LiveSession:
    record: Record
    box: Box
    agent: BoxAgent
    idle_timeout_s: float
    last_used: float
    """On the monotonic clock."""
    environment: str | None = None
    """The environment the caller chose, if any."""
    provider: str = ""
    """The name of the runtime that made its box."""
    limits: LimitValues | None = None
    """Its own; None: those of the server."""
    network: NetworkTerms = field(default_factory=NetworkTerms)
    egress: Egress | None = None
    """Serves its connections, where they go through the server."""
    env_digest: str = ""
    """Of the variables it was made with: their values may be secret."""
    made_for: SessionAgent | None = None
    """The agent it was made for, as that was declared then."""
    policy: str | None = None
    """Of its agent or environment, if they have one."""
    cwd: str | None = None
    """The working directory after the last command, as far as this process knows."""
    met: bool = True
    """Whether its box has confirmed the session. A box that did not answer during adoption is asked
    again before use."""
    may_run_until: float = -math.inf
    """Until when a command may run whose end this process will not see."""
    busy: int = 0
    ended: Status | None = None
    watches: set[asyncio.Task[None]] = field(default_factory=set)
    languages: dict[str, str] = field(default_factory=dict)
    """Languages of its contexts, as far as this process knows."""
    texts: dict[str, str] = field(default_factory=dict)
    """Of the newest commands, by their id."""
    keep: KeepRules = KeepRules()
    checkpoint_id: str | None = None
    """The one it began with, or the last one that was taken of it."""
    kept_at: float = field(default_factory=time.monotonic)
    """When that was."""
    keep_again_at: float = -math.inf
    """Until when no automatic checkpoint is tried after one has failed."""
    problem: str | None = None
    """Why it cannot be kept."""
    changed: bool = True
    """Whether it was used since its last automatic checkpoint."""
    commands: int = 0
    """That have ended since that."""
    began_with: str | None = None
    """The checkpoint it began with."""
    resumed: Resumed | None = None
    """How it went on from there."""
    preview_tokens: dict[int, str] = field(default_factory=dict)
    """Of its previews by port, as far as this process has made them: what is stored has digests."""
    bytes_in: int = 0
    """Of uploads and connections, through this process."""
    bytes_out: int = 0
    points: ThreadPoints | None = None
    """Those of its thread, once they were needed."""

    def __repr__(self) -> str:
        record = self.record
        return f"<LiveSession {record.thread_id} #{record.generation} in {self.box.id}>"

    @property
    def key(self) -> Key:
        return self.record.tenant, self.record.thread_id

    async def meet(self) -> None:
        """Check that the box answers and belongs to this session. Raises SessionLost,
        RuntimeUnavailable."""
        await self.agent.connect()
        if not self.met and (about := self.agent.about) is not None:
            if identity(about.state) != identity(vars(self.record)):
                raise SessionLost(
                    f"box {self.box.id} does not report session {self.record.session_id} as its own"
                )
            self.met = True

    @contextmanager
    def use(self, *, for_s: float = 0.0) -> Iterator[None]:
        """Keep the session from expiring while in use; its idle time restarts afterwards.

        for_s: time limit of the command, which may still run if this exits with an error, for
        example because the caller disconnected.
        """
        self.busy += 1
        self.changed = True
        self.last_used = began = time.monotonic()
        try:
            yield
        except BaseException:
            self.may_run_until = max(self.may_run_until, began + for_s)
            raise
        finally:
            self.busy -= 1
            self.changed = True  # Also if a checkpoint was taken meanwhile.
            self.last_used = time.monotonic()

    def used_at(self, idle_s: float, *, now: float) -> float:
        """When it was last used, given the idle time its box reports. The box is believed only up
        to `may_run_until`: later use would have passed through this server."""
        return max(self.last_used, min(now - idle_s, self.may_run_until))

    def remember(self, command_id: str, text: str) -> None:
        """Keep the text of a command that is about to run."""
        self.texts[command_id] = text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"
        if len(self.texts) > TEXTS:
            del self.texts[next(iter(self.texts))]

    def watch(
        self,
        command_id: str,
        *,
        for_s: float | None,
        then: Callable[[CommandResult | None], None] = lambda _: None,
    ) -> None:
        """Count a background command as use until it ends.

        for_s: its time limit, if it has one; a box that lies cannot extend it. then: called with
        how it ended, if the box tells.
        """

        async def until_it_ends() -> None:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if for_s is None else for_s + SETTLE_S):
                        then(await self.agent.ended(command_id))
            except SandboxError:
                # It may still run: the box is asked before the session is ended.
                self.may_run_until = max(self.may_run_until, time.monotonic() + MAX_TIMEOUT_S)

        def ended(task: asyncio.Task[None]) -> None:
            self.watches.discard(task)
            self.busy -= 1
            self.last_used = time.monotonic()

        self.busy += 1
        task = asyncio.create_task(until_it_ends())
        self.watches.add(task)
        task.add_done_callback(ended)

    async def let_go(self) -> None:
        """Stop using the session; its box goes on."""
        if self.egress is not None:
            await self.egress.close()
        for task in self.watches:
            task.cancel()
        await asyncio.gather(*self.watches, return_exceptions=True)
        await self.agent.close()

    def idle_s(self, now: float) -> float:
        return 0.0 if self.busy else max(now - self.last_used, 0.0)

    def is_idle(self, now: float) -> bool:
        return self.idle_s(now) > self.idle_timeout_s

    def is_due(self, now: float) -> bool:
        """Whether an automatic checkpoint is to be taken."""
        rules = self.keep
        if now < self.keep_again_at or not (self.changed or self.busy):
            return False
        if rules.every_s is not None and now - self.kept_at >= rules.every_s:
            return True
        return rules.every_commands is not None and self.commands >= rules.every_commands


def state_of(
    record: Record,
    *,
    idle_timeout_s: float,
    environment: str | None,
    env_digest: str = "",
    limits: LimitValues | None = None,
    network: Network = "none",
) -> dict[str, Any]:
    """The session's state, stored in ledger and box for a later process."""
    return {
        **{name: getattr(record, name) for name in (*_IDENTITY, "created_at")},
        "idle_timeout_s": idle_timeout_s,
        "environment": environment,
        "env_digest": env_digest,
        "limits": limits,
        "network": network,
        "asked": dict(record.asked),
    }


def kept_of(
    agent: SessionAgent | None, policy: str | None, checkpoint_id: str | None = None
) -> dict[str, Any]:
    """What the ledger keeps for a later process and a box is not told."""
    kept: dict[str, Any] = {} if policy is None else {"policy": policy}
    if checkpoint_id is not None:
        kept["checkpoint_id"] = checkpoint_id
    if agent is not None:
        kept["agent"] = agent.model_dump(mode="json", exclude_defaults=True)
    return kept


def agent_from_kept(kept: Mapping[str, Any]) -> SessionAgent | None:
    return SessionAgent.model_validate(kept["agent"]) if "agent" in kept else None


def digest(env: Mapping[str, str] | None) -> str:
    """Equal for equal variables; empty for none."""
    if not env:
        return ""
    return hashlib.sha256(json.dumps(env, sort_keys=True).encode()).hexdigest()


def identity(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """The fields that identify a session, from a state or a record."""
    return tuple(state.get(name) for name in _IDENTITY)


def record_from_state(state: Mapping[str, Any], box_id: str, *, worker: str, epoch: int) -> Record:
    """Rebuild a session's record from its state."""
    kept = {name: state[name] for name in (*_IDENTITY, "created_at")}
    asked = state.get("asked") or {}
    return Record(
        **kept, box_id=box_id, status=Status.LIVE, worker=worker, epoch=epoch, asked=asked
    )
