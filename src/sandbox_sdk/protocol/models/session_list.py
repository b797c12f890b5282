"""Sessions as they are listed, and how long they last."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, Field, model_validator

from sandbox_sdk.protocol.models.base import (
    MAX_LIFETIME_S,
    UNREACHABLE,
    Model,
    Request,
    Target,
    WrongField,
)

SessionActivity = Literal["idle", "busy", "paused"]
END_AT = (
    "When it ends, used or not, where it has a lifetime: `lifetime_s` of `create_session`, or what "
    "`set_lifetime` said last."
)


def _written(value: Any) -> Any:
    """Pydantic would take a number for seconds."""
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d", value, re.ASCII):
        raise ValueError("a time is written as 2026-01-31T12:00:00Z")
    return value


Moment = Annotated[datetime, BeforeValidator(_written)]


class SessionSummary(Model):
    """A session as its server knows it, without asking the box."""

    session_id: str
    thread_id: str
    generation: int
    worker: str
    runtime: str
    environment: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    created_at: datetime
    idle_s: float
    expires_at: datetime
    end_at: datetime | None = Field(None, description=END_AT)
    state: SessionActivity


class SessionList(Model):
    sessions: list[SessionSummary]
    next: str | None = Field(
        None, description="Where there are more: the `after` of the request for those."
    )
    unreachable: list[str] = Field(default_factory=list, description=UNREACHABLE)


class SessionsRequest(Request):
    """Which sessions are wanted: those that fit everything that is given."""

    metadata: str | None = Field(
        None,
        max_length=16384,
        description="Names and values that they have, in the form of a query: `user=42&app=notes`, "
        "with %XX for other characters.",
        examples=["user=42"],
    )
    environment: str | None = Field(None, max_length=200)
    state: SessionActivity | None = None
    created_after: Moment | None = Field(None, strict=False)
    order: Literal["oldest", "newest"] = Field("oldest", description="Which come first.")
    limit: int | None = Field(None, ge=1, le=1000, description="The most; left out: all.")
    after: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The `next` of an earlier answer: those that follow.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        try:
            _position("0," if self.after is None else self.after)
        except ValueError:
            raise WrongField("after", "this is no `next` of an earlier answer") from None
        try:
            self.wanted_metadata()
        except ValueError:
            raise WrongField("metadata", "give it as user=42&app=notes") from None
        return self

    def wanted_metadata(self) -> dict[str, str]:
        """Raises ValueError."""
        if not self.metadata:
            return {}
        return dict(parse_qsl(self.metadata, keep_blank_values=True, strict_parsing=True))

    def page(self, sessions: Iterable[SessionSummary], *, more: bool = False) -> SessionList:
        """The first of these that are wanted. more: whether others than these may follow them."""
        newest = self.order == "newest"
        after = None if self.after is None else _position(self.after)
        pairs = self.wanted_metadata().items()
        found = sorted(
            (s for s in sessions if self._wants(s) and pairs <= s.metadata.items()),
            key=_place,
            reverse=newest,
        )
        if after is not None:
            found = [s for s in found if (_place(s) < after if newest else _place(s) > after)]
        kept = found if self.limit is None else found[: self.limit]
        cut = len(kept) < len(found) or (more and bool(kept))
        place = _place(kept[-1]) if cut else None
        return SessionList(sessions=kept, next=place and f"{place[0]},{place[1]}")

    def _wants(self, session: SessionSummary) -> bool:
        since = self.created_after
        if since is not None and since.tzinfo is None:
            since = since.replace(tzinfo=UTC)
        return (
            self.environment in (None, session.environment)
            and self.state in (None, session.state)
            and (since is None or session.created_at > since)
        )


class LifetimeRequest(Target):
    """How much longer a session may last."""

    lifetime_s: float = Field(
        ge=0, le=MAX_LIFETIME_S, description="Seconds from now; 0: as long as it is used."
    )
    only_longer: bool = Field(
        False, description="Leave it as it is where it lasts longer than that already."
    )


def _place(session: SessionSummary) -> tuple[int, str]:
    return round(session.created_at.timestamp() * 1_000_000), session.session_id


def _position(text: str) -> tuple[int, str]:
    """Raises ValueError."""
    number, _, session_id = text.partition(",")
    return int(number), session_id
