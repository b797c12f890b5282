"""The sessions of a fake backend, live ones and those that have ended."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from ipaddress import ip_network
from typing import Any, cast

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    AgentInfo,
    Context,
    CreateSessionRequest,
    EgressRules,
    ExecuteRequest,
    Limits,
    LimitValues,
    Resumed,
    SessionState,
    SessionSummary,
    Target,
    granted,
)
from sandbox_sdk.protocol.providers import no_provider
from sandbox_sdk.testing.agents import FakeRegistry
from sandbox_sdk.testing.commands import FakeCommand
from sandbox_sdk.testing.files import FakeFiles

RUNTIME = WORKER = "fake"


class End(Enum):
    CLEANED = "cleaned"
    EXPIRED = "expired"
    LOST = "lost"


def check_egress(rules: EgressRules | None) -> None:
    """Sessions have no network here. Raises InvalidRequest."""
    if rules is None:
        return
    for text in rules.deny:
        try:
            ip_network(text, strict=False)
        except ValueError:
            raise errors.InvalidRequest(
                f"egress_rules.deny: {text[:80]!r} is not an address or a network; names cannot be"
                " denied"
            ) from None
    if rules.allow:
        raise errors.InvalidRequest(
            f"egress_rules.allow: {rules.allow[0]!r} cannot be reached: sessions have no network"
            " here; the operator gives them one with SANDBOX_NETWORK, or with an environment"
        )


@dataclass
class FakeSession:
    thread_id: str
    session_id: str
    generation: int
    wanted: CreateSessionRequest
    """What it was made with."""
    idle_timeout_s: float
    limits: Limits
    provider: str = RUNTIME
    agent: AgentInfo | None = None
    cwd: str = WORKSPACE
    files: FakeFiles = field(default_factory=FakeFiles)
    commands: list[FakeCommand] = field(default_factory=list)
    contexts: dict[str, Context] = field(default_factory=dict)
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    last_used: float = field(default_factory=time.monotonic)
    end_at: datetime | None = None
    paused: bool = False
    """Until it is used. What runs ends in its time all the same."""
    ended: End | None = None
    checkpoint_id: str | None = None
    """The one it began with, or the last one that was taken of it."""
    began_with: str | None = None
    resumed: Resumed | None = None

    @property
    def sandbox_id(self) -> str:
        return f"box-{self.session_id[:8]}"

    def use(self) -> None:
        self.paused = False
        self.last_used = time.monotonic()

    @property
    def running(self) -> list[FakeCommand]:
        return [command for command in self.commands if command.running]

    @property
    def idle_s(self) -> float:
        if self.running:
            self.last_used = time.monotonic()
        return time.monotonic() - self.last_used

    @property
    def live(self) -> bool:
        over = self.end_at is not None and datetime.now(UTC) >= self.end_at
        if over and self.wanted.pause_at_end and not self.paused:
            self.paused, self.end_at, over = True, None, False
        if self.ended is None and (over or self.idle_s > self.idle_timeout_s):
            self.ended = End.EXPIRED
        return self.ended is None

    def check(self) -> None:
        """Raises SessionNotFound, and SessionLost for one that was lost."""
        if not self.live:
            raise missing(self, Target(session_id=self.session_id))

    def find(self, command_id: str) -> FakeCommand:
        """Raises NotFound."""
        for command in self.commands:
            if command.command_id == command_id:
                return command
        raise errors.NotFound(
            f"no command {command_id} in this session; list its commands to see those there are"
        )

    def joined(self, request: ExecuteRequest) -> FakeCommand | None:
        """The command that was run with the same key. Raises IdempotencyMismatch."""
        key = request.idempotency_key
        for command in self.commands:
            if key and command.request.idempotency_key == key:
                if command.request.command != request.command:
                    raise errors.IdempotencyMismatch(
                        f"idempotency_key {key} was used for another command; use a new key"
                    )
                return command
        return None

    def last(self, lifetime_s: float | None, *, only_longer: bool = False) -> None:
        """End it so many seconds from now; None or 0: when it is idle."""
        end_at = datetime.now(UTC) + timedelta(seconds=lifetime_s) if lifetime_s else None
        if only_longer and end_at is not None:
            end_at = self.end_at and max(self.end_at, end_at)
        self.end_at = end_at

    def fields(self) -> dict[str, Any]:
        idle_at = datetime.now(UTC) + timedelta(seconds=max(self.idle_timeout_s - self.idle_s, 0))
        return {
            "session_id": self.session_id,
            "thread_id": self.thread_id,
            "generation": self.generation,
            "worker": WORKER,
            "runtime": self.provider,
            "sandbox_id": self.sandbox_id,
            "environment": self.wanted.environment,
            "metadata": self.wanted.metadata,
            "created_at": self.created_at,
            "expires_at": idle_at if self.end_at is None else min(idle_at, self.end_at),
            "end_at": self.end_at,
            "pause_at_end": self.wanted.pause_at_end,
            "limits": self.limits,
            "agent": self.agent,
            "egress_rules": self.wanted.egress_rules,
            "ports": self.wanted.ports,
        }

    def not_applied(self, request: CreateSessionRequest) -> list[str]:
        """The options of a request that this session does not have."""
        differ = {
            "environment": request.environment not in (None, self.wanted.environment),
            "agent": request.agent not in (None, self.wanted.agent),
            "env": bool(request.env) and request.env != self.wanted.env,
            "idle_timeout_s": request.idle_timeout_s not in (None, self.idle_timeout_s),
            "lifetime_s": request.lifetime_s not in (None, self.wanted.lifetime_s),
            "metadata": request.metadata not in ({}, self.wanted.metadata),
            "egress_rules": request.egress_rules not in (None, self.wanted.egress_rules),
            "ports": request.ports not in (None, self.wanted.ports),
            "provider": request.provider not in (None, self.provider),
            "checkpoint_id": request.checkpoint_id not in (None, self.began_with),
            "persist": request.persist and not self.wanted.persist,
        }
        has = cast("dict[str, float]", self.limits.values())
        asked = request.limits.given()
        differ |= {f"limits.{name}": has.get(name) != value for name, value in asked.items()}
        return [name for name, differs in differ.items() if differs]

    def summary(self) -> SessionSummary:
        state = "paused" if self.paused else "busy" if self.running else "idle"
        more = {"idle_s": round(self.idle_s, 3), "state": state}
        return SessionSummary.model_validate({**self.fields(), **more})


class FakeSessions:
    """At most one live session a thread."""

    def __init__(
        self,
        registry: FakeRegistry,
        *,
        capacity: int,
        idle_timeout_s: float,
        limits: Limits,
        most: LimitValues,
        providers: Sequence[str],
    ) -> None:
        self._registry = registry
        self._capacity = capacity
        self._idle_timeout_s = idle_timeout_s
        self._limits = limits
        self._most = most
        self._providers = providers
        self._all: list[FakeSession] = []

    def live(self) -> list[FakeSession]:
        return [session for session in self._all if session.live]

    def all(self) -> list[FakeSession]:
        """Ended ones too, oldest first."""
        return list(self._all)

    def newest(self, thread_id: str) -> FakeSession | None:
        lives = [session for session in self._all if session.thread_id == thread_id]
        return lives[-1] if lives else None

    def find(self, target: Target) -> FakeSession:
        """Raises SessionNotFound, SessionLost."""
        if target.thread_id is not None:
            found = self.newest(target.thread_id)
        else:
            found = next((s for s in self._all if s.session_id == target.session_id), None)
        if found is None or not found.live:
            raise missing(found, target)
        return found

    def open(
        self, target: Target, wanted: CreateSessionRequest | None = None
    ) -> tuple[FakeSession, SessionState]:
        """By thread_id a session is made where there is none, by session_id it has to exist.
        wanted: left out, it is like the one that its thread lost."""
        if target.thread_id is None:
            return self.find(target), "live"
        before = self.newest(target.thread_id)
        if before is not None and before.live:
            return before, "live"
        if len(self.live()) >= self._capacity:
            raise errors.Capacity(
                f"at capacity: {self._capacity} of {self._capacity} sessions; retry in 5 s",
                retry_after_s=5,
            )
        wanted = wanted or _as_before(before)
        provider = wanted.provider or self._providers[0]
        if provider not in self._providers:
            raise no_provider(provider, there=self._providers)
        usual = self._limits.values()
        limits = granted(wanted.limits.given(), default=usual, most=self._most)
        session = FakeSession(
            thread_id=target.thread_id,
            session_id=str(uuid.uuid4()),
            generation=1 if before is None else before.generation + 1,
            wanted=wanted,
            idle_timeout_s=wanted.idle_timeout_s or self._idle_timeout_s,
            limits=self._limits.with_values(limits),
            provider=provider,
            agent=self._agent(wanted),
        )
        session.last(wanted.lifetime_s)
        self._all.append(session)
        if before is not None and before.ended is End.EXPIRED and before.wanted.persist:
            session.files, session.cwd = before.files, before.cwd
            kept = f"cp-{before.session_id[:8]}"
            session.resumed = Resumed(checkpoint_id=kept, age_s=0.0, complete=True)
            return session, "resumed"
        return session, "recreated" if _was_lost(before) else "created"

    def agent(self, target: Target) -> AgentInfo | None:
        """That of the session which a call is for, before it is made."""
        if target.thread_id is None:
            return self.find(target).agent
        newest = self.newest(target.thread_id)
        if newest is not None and newest.live:
            return newest.agent
        return self._agent(_as_before(newest))

    def _agent(self, wanted: CreateSessionRequest) -> AgentInfo | None:
        return None if wanted.agent is None else self._registry.agent(wanted.agent)


def _was_lost(session: FakeSession | None) -> bool:
    return session is not None and session.ended in (End.LOST, End.EXPIRED)


def _as_before(session: FakeSession | None) -> CreateSessionRequest:
    if session is None or not _was_lost(session):
        return CreateSessionRequest()
    return session.wanted.model_copy(update={"env": {}})


def missing(session: FakeSession | None, target: Target) -> errors.SandboxError:
    if session is not None and session.ended is End.LOST:
        return errors.SessionLost.of(session.session_id, generation=session.generation)
    return errors.SessionNotFound.of(thread_id=target.thread_id, session_id=target.session_id)
