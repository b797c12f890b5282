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
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, EgressRules, LimitValues, OpenPorts, Resumed
from sandbox_server.checkpoints.points import ThreadPoints
from sandbox_server.network.egress import Egress
from sandbox_server.network.modes import NetworkTerms
from sandbox_server.registry.agents import SessionAgent
from sandbox_server.runtime.agent import BoxAgent, CommandResult
from sandbox_server.runtime.base import USUAL_USER, Box, BoxUser
from sandbox_server.runtime.box_network import Network
from sandbox_server.sessions.registry import Record, Status

Key = tuple[str, str]
"""Tenant and thread_id."""
_IDENTITY = ("tenant", "thread_id", "generation", "session_id")
PAUSED_S = 86400.0
"""How long a paused session is kept."""
RESUMED_S = 300.0
"""The least time until the next pause of one that was paused at the end of its lifetime."""
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
    end_at: float | None = None
    """When it ends, used or not, on the clock of the world."""
    paused_at: float | None = None
    """Since when nothing runs in it, on the same clock."""
    environment: str | None = None
    """The environment the caller chose, if any."""
    provider: str = ""
    """The name of the runtime that made its box."""
    limits: LimitValues | None = None
    """Its own; None: those of the server."""
    user: BoxUser = USUAL_USER
    network: NetworkTerms = field(default_factory=NetworkTerms)
    egress: Egress | None = None
    """Serves its connections, where they go through the server."""
    env_digest: str = ""
    """Of the variables it was made with: their values may be secret."""
    made_for: SessionAgent | None = None
    """The agent it was made for, as that was declared then."""
    made_by: str = ""
    """The id of the API key whose call made it; empty for none."""
    begun_by: dict[str, str] = field(default_factory=dict)
    """The same for commands in the background, by their id, where the key has a limit of them."""
    policy: str | None = None
    """Of its agent or environment, if they have one."""
    cwd: str | None = None
    """The working directory after the last command, as far as this process knows."""
    met: bool = True
    """Whether its box has confirmed the session. A box that did not answer during adoption is asked
    again before use."""
    may_run_until: float = -math.inf
    """Until when a command may run whose end this process will not see."""
    taken_over: bool = False
    """Whether it began on another worker, which has counted what it used there."""
    busy: int = 0
    ended: Status | None = None
    moved: bool = False
    """Whether another worker has taken it over: it goes on there, and has ended only here."""
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
        over: Callable[[], None] = lambda: None,
        uses: bool = True,
    ) -> None:
        """Count a background command as use until it ends.

        for_s: its time limit, if it has one; a box that lies cannot extend it. then: called with
        how it ended, if the box tells. over: called when it is no longer watched, unless the
        session goes on without this process. uses: False for one that is watched, but is no use.
        """

        async def until_it_ends() -> None:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if for_s is None else for_s + SETTLE_S):
                        then(await self.agent.ended(command_id))
            except SandboxError:
                # It may still run: the box is asked before the session is ended.
                if uses:
                    self.may_run_until = max(self.may_run_until, time.monotonic() + MAX_TIMEOUT_S)

        def ended(task: asyncio.Task[None]) -> None:
            self.watches.discard(task)
            if uses:
                self.busy -= 1
                self.last_used = time.monotonic()
            if self.ended is not None or not task.cancelled():
                over()

        self.busy += uses
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
        if self.paused_at is not None:
            return time.time() - self.paused_at > PAUSED_S
        return self.idle_s(now) > self.idle_timeout_s

    @property
    def is_over(self) -> bool:
        """Whether its lifetime is."""
        return self.end_at is not None and time.time() >= self.end_at

    def expires_at(self, now: float) -> float:
        """When it ends if nobody uses it from now on, on the clock of the world."""
        idle_at = time.time() + max(self.idle_timeout_s - self.idle_s(now), 0.0)
        if self.paused_at is not None:
            idle_at = self.paused_at + PAUSED_S
        return idle_at if self.end_at is None else min(idle_at, self.end_at)

    @property
    def pauses_at_end(self) -> bool:
        return bool(self.record.asked.get("pause_at_end"))

    @property
    def lasts_after_pause_s(self) -> float | None:
        """Its lifetime from when it goes on, if it has one; then it is paused again."""
        lifetime_s = self.record.asked.get("lifetime_s")
        if not self.pauses_at_end or lifetime_s is None:
            return None
        return max(float(lifetime_s), RESUMED_S)

    @property
    def ports(self) -> OpenPorts | None:
        """How all of its ports are seen, if they are."""
        asked = self.record.asked.get("ports")
        return None if asked is None else OpenPorts(**asked)

    @property
    def egress_rules(self) -> EgressRules | None:
        """What its caller does not let it reach, as that was last said."""
        return egress_rules_of(self.record)

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.record.asked.get("metadata") or {})

    def kept(self) -> dict[str, Any]:
        """What the ledger keeps of it for a later process and its box is not told."""
        times = {"end_at": self.end_at, "paused_at": self.paused_at}
        keys = {"made_by": self.made_by or None, "begun_by": dict(self.begun_by) or None}
        kept = kept_of(self.made_for, self.policy, self.began_with, **times, **keys)
        # None, too: they may have been taken back since the session was made.
        return {**kept, "egress_rules": self.record.asked.get("egress_rules")}

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
    agent: SessionAgent | None, policy: str | None, checkpoint_id: str | None = None, **more: Any
) -> dict[str, Any]:
    """See LiveSession.kept(). Without what is None."""
    named = {"policy": policy, "checkpoint_id": checkpoint_id, **more}
    kept: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if agent is not None:
        kept["agent"] = agent.model_dump(mode="json", exclude_defaults=True)
    return kept


def egress_rules_of(record: Record) -> EgressRules | None:
    asked = record.asked.get("egress_rules")
    return None if asked is None else EgressRules(**asked)


def asked_with(asked: Mapping[str, Any], egress_rules: Any) -> dict[str, Any]:
    """What was asked for, with other rules; None: without any."""
    kept = {name: value for name, value in asked.items() if name != "egress_rules"}
    return kept if egress_rules is None else {**kept, "egress_rules": egress_rules}


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
