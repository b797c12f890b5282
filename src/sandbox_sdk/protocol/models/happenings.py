"""What happens to a tenant's sandboxes, told as it happens."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from sandbox_sdk.protocol.models.base import Model, Request

HappeningKind = Literal[
    "session.created",
    "session.restored",
    "session.resumed",
    "session.paused",
    "session.unpaused",
    "session.ended",
    "session.lost",
    "command.finished",
    "checkpoint.created",
    "limit.reached",
    "budget.near",
    "gap",
]
LONGEST_WAIT_S = 30.0


class HappeningsRequest(Request):
    after: str | None = Field(
        None,
        max_length=16_000,
        pattern=r"^[A-Za-z0-9._~=;-]*$",
        description="`next` of the answer before, or the `id` of an event: what came after. Empty:"
        " all that is kept. By default, what comes from now on.",
    )
    thread_id: str | None = Field(None, max_length=128, description="Of this thread alone.")
    kind: HappeningKind | None = Field(None, description="Of this kind alone.")
    limit: int = Field(100, ge=1, le=1000, description="The most events of one answer.")
    wait: float = Field(
        0.0, ge=0, le=LONGEST_WAIT_S, description="Seconds to wait if there is none yet."
    )


class Happening(Model):
    id: str = Field(description="Where it is: `after` of a request for those that follow.")
    kind: HappeningKind = Field(
        description="`gap`: events are missing here, as they were more than are kept, or the server"
        " was restarted."
    )
    at: datetime
    thread_id: str | None = None
    session_id: str | None = None
    worker: str = Field("", description="Where it happened.")
    data: dict[str, Any] = Field(
        default_factory=dict, description="By its kind: exit_code, reason, checkpoint_id, …"
    )


class HappeningList(Model):
    events: list[Happening] = Field(
        description="In their order; of several workers, in each one's."
    )
    next: str = Field(description="`after` of the next request.")
    unreachable: list[str] = Field(
        default_factory=list, description="Workers that did not answer: theirs come later."
    )
