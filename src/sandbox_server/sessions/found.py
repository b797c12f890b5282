"""Decides what to do with a box found after a restart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox_sdk.protocol.models import MAX_IDLE_TIMEOUT_S
from sandbox_server.runtime.agent import BoxState
from sandbox_server.sessions.ledger import Entry
from sandbox_server.sessions.live import identity, state_of
from sandbox_server.sessions.registry import Record


@dataclass(frozen=True)
class Warm:
    """Unused: it goes to the pool."""


@dataclass(frozen=True)
class Resume:
    """It belongs to a session, which goes on."""

    state: Mapping[str, Any]
    """The session's state, as recorded when it began."""
    met: bool
    """Whether the box has confirmed the session."""


@dataclass(frozen=True)
class Discard:
    """It is destroyed; its session, if any, is lost."""

    why: str


def decide(
    entry: Entry | None,
    known: Record | None,
    reported: BoxState | None,
    *,
    build: str,
    idle_timeout_s: float,
) -> Warm | Resume | Discard:
    """Decide by the ledger's entry and the registry's session for the box. What the box reports
    (None if it does not answer) is not trusted: it can only lead to Discard, never away from it."""
    if entry is not None and entry.state is None:
        return Discard(why) if (why := _unfit(entry, known, reported, build)) else Warm()
    if entry is not None and (entry.begun or known is not None):
        assert entry.state is not None
        state = entry.state
    elif entry is None and known is not None:
        state = _of_older_server(known, reported, idle_timeout_s)
    else:
        return Discard("no session owns it")
    if reported is not None and identity(reported.state) != identity(state):
        return Discard("it reports another session than the ledger")
    return Resume(state, met=reported is not None)


def _unfit(entry: Entry, known: Record | None, reported: BoxState | None, build: str) -> str:
    """Why a warm box cannot be handed out; empty if it can."""
    if reported is None:
        return "it does not answer"
    if known is not None or reported.state or reported.ran or reported.commands:
        return "it has been used"
    return "" if entry.build == build else f"it was made as {entry.build}, not {build}"


def _of_older_server(
    known: Record, reported: BoxState | None, idle_timeout_s: float
) -> Mapping[str, Any]:
    """Before the ledger, environment and idle timeout were stored only in the box."""
    environment = None
    if reported is not None and identity(reported.state) == identity(vars(known)):
        kept, environment = reported.state.get("idle_timeout_s"), reported.state.get("environment")
        if isinstance(kept, int | float) and 0 < kept <= MAX_IDLE_TIMEOUT_S:
            idle_timeout_s = kept
        environment = None if environment is None else str(environment)
    return state_of(known, idle_timeout_s=idle_timeout_s, environment=environment)
