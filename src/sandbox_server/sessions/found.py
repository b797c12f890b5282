"""What becomes of a box that a server finds after a restart. Pure."""

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
    """Nobody has had it."""


@dataclass(frozen=True)
class Resume:
    """It is a session's."""

    state: Mapping[str, Any]
    """What its server wrote down when the session began."""
    met: bool
    """Whether the box has confirmed that."""


@dataclass(frozen=True)
class Discard:
    """It is destroyed. A session it was given to is lost."""

    why: str


def decide(
    entry: Entry | None,
    known: Record | None,
    told: BoxState | None,
    *,
    build: str,
    idle_timeout_s: float,
) -> Warm | Resume | Discard:
    """By the ledger's entry and by the session the registry knows for the box. What the box says
    (`told`, None where it does not answer) can only cost it its place, never give it one."""
    if entry is not None and entry.state is None:
        return Discard(why) if (why := _unfit(entry, known, told, build)) else Warm()
    if entry is not None and (entry.begun or known is not None):
        assert entry.state is not None
        state = entry.state
    elif entry is None and known is not None:
        state = _of_older_server(known, told, idle_timeout_s)
    else:
        return Discard("it is no session's")
    if told is not None and identity(told.state) != identity(state):
        return Discard("it says that it is another session's")
    return Resume(state, met=told is not None)


def _unfit(entry: Entry, known: Record | None, told: BoxState | None, build: str) -> str:
    """Why a box that was made ahead of need cannot be handed out."""
    if told is None:
        return "it does not answer"
    if known is not None or told.state or told.ran or told.commands:
        return "it was used"
    return "" if entry.build == build else "its warden is of another version"


def _of_older_server(
    known: Record, told: BoxState | None, idle_timeout_s: float
) -> Mapping[str, Any]:
    """Versions before the ledger have left environment and idle timeout in the box alone."""
    environment = None
    if told is not None and identity(told.state) == identity(vars(known)):
        kept, environment = told.state.get("idle_timeout_s"), told.state.get("environment")
        if isinstance(kept, int | float) and 0 < kept <= MAX_IDLE_TIMEOUT_S:
            idle_timeout_s = kept
        environment = None if environment is None else str(environment)
    return state_of(known, idle_timeout_s=idle_timeout_s, environment=environment)
