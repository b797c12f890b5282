"""Opens what tells of events, from the settings."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.events.log import EventLog
from sandbox_server.events.outbox import Outbox
from sandbox_server.events.sender import Sender
from sandbox_server.events.webhooks import read_webhooks
from sandbox_server.private import private_folder


def open_outbox(state: Path, name: str) -> Outbox:
    """Close it. Raises RuntimeUnavailable."""
    try:
        private_folder(state)
        return Outbox(state / f"{name}.outbox")
    except (OSError, sqlite3.Error) as exc:
        raise RuntimeUnavailable(f"webhooks need the state folder {state}: {exc}") from None


@contextlib.asynccontextmanager
async def open_webhooks(
    file: Path | None, events: EventLog, state: Path, name: str, *, attempts: int
) -> AsyncIterator[Sender | None]:
    """None without webhooks. state, name: the folder of the server, and its name, which its
    processes share. Raises InvalidRequest, RuntimeUnavailable."""
    webhooks = read_webhooks(file)
    if not webhooks:
        yield None
        return
    kept = open_outbox(state, name)
    try:
        async with Sender(events, webhooks, kept, attempts=attempts) as sender:
            yield sender
    finally:
        kept.close()


def budget_teller(events: EventLog) -> Callable[[str, str, float, str], None]:
    """For Usage."""

    def told(tenant: str, name: str, share: float, key_id: str) -> None:
        of = {"key": key_id} if key_id else {}
        events.publish("budget.near", tenant, budget=name, share=round(share, 3), **of)

    return told


def limit_teller(events: EventLog) -> Callable[[str, str, str, str], None]:
    """For a Limiter."""

    def told(tenant: str, limit: str, rule: str, key_id: str) -> None:
        of = {"key": key_id} if key_id else {}
        events.publish("limit.reached", tenant, limit=limit, rule=rule, **of)

    return told
