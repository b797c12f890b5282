"""What a tenant has used."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sandbox_sdk.protocol.models.base import Model, Request

UsageBy = Literal["day", "thread", "session", "total"]


def _written(value: Any) -> Any:
    """Pydantic would take a number for seconds."""
    if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        raise ValueError("a day is written as 2026-01-31")
    if isinstance(value, int | float):
        raise ValueError("a day is written as 2026-01-31")
    return value


Day = Annotated[date, BeforeValidator(_written)]


class UsageRequest(Request):
    by: UsageBy = Field("day", description="What each row is of.")
    since: Day | None = Field(
        None, description="The first day, of UTC. By default, 30 days with the last."
    )
    until: Day | None = Field(None, description="The last day. By default today.")
    thread_id: str | None = Field(None, max_length=128, description="Of this thread alone.")


class UsageRow(Model):
    """What was used. Threads and sessions are known for fewer days than the whole."""

    day: date | None = Field(None, description="With `by=day`.")
    thread_id: str | None = Field(
        None,
        description="With `by=thread` and `by=session`. Empty: of sessions that were too many for a"
        " row of their own.",
    )
    session_id: str | None = Field(None, description="With `by=session`.")
    commands: int = Field(description="That were started, and runs of code.")
    cpu_seconds: float = Field(description="CPU time of the boxes.")
    command_seconds: float = Field(description="How long commands ran.")
    session_seconds: float = Field(
        description="How long sessions lived, but for when they were paused."
    )
    paused_seconds: float = Field(0.0, description="How long sessions were paused.")
    memory_peak_bytes: int = Field(description="The most memory that one session had.")
    memory_gb_hours: float = Field(description="Memory in use, times how long it was.")
    bytes_in: int = Field(description="Uploads, input of commands, and connections to boxes.")
    bytes_out: int = Field(description="Downloads, output of commands, and connections to boxes.")
    egress_bytes: int = Field(description="Connections of boxes through the server, both ways.")
    storage_bytes: int | None = Field(
        None,
        description="Checkpoints, volumes and artifacts: the most there was. Null for threads and"
        " sessions.",
    )
    storage_gb_days: float | None = Field(None, description="The most of each day, added up.")
    cost: float | None = Field(None, description="By SANDBOX_PRICES; null without.")


class UsageReport(Model):
    by: UsageBy
    since: date
    until: date
    rows: list[UsageRow] = Field(
        description="Days in their order; threads and sessions with the most CPU time first."
    )
    truncated: bool = Field(False, description="Whether there were more rows than are told.")
    currency: str | None = Field(None, description="Of `cost`.")
    unreachable: list[str] = Field(
        default_factory=list,
        description="Workers that did not answer: their last seconds may be missing.",
    )
