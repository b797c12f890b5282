"""What a fleet stores in its Redis beside its sessions: the history, and what was used. Workers
write it, coordinators answer from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from sandbox_sdk.protocol import models
from sandbox_server.fleet.store import Store, flat
from sandbox_server.storage.history import (
    Began,
    Ended,
    History,
    Kept,
    Note,
    command_fields,
    stored_command,
    stored_session,
)
from sandbox_server.usage.figures import Figures, Row, days_between, key_in
from sandbox_server.usage.ledger import Retention, SharedUsage
from sandbox_server.usage.report import UsageRows

_PIECE = 100
_LOOKED_AT = 5000
"""Most sessions that one search looks at."""
_LIVE_S = 30 * 86400.0
"""How long a session is stored whose end nobody tells: its worker is gone for good."""
_DAYS_AT_ONCE = 50
"""Days that are asked for at a time."""
_DAY_MS = 86_400_000


class RedisHistory(History):
    """By session: a hash of its fields, and a list of its commands. By tenant: the session ids,
    sorted by their beginning."""

    def __init__(self, store: Store, kept: Kept) -> None:
        self._store = store
        self._kept = kept

    async def write(self, notes: Sequence[Note]) -> None:
        await self._store.pipeline([command for note in notes for command in self._of(note)])

    def _of(self, note: Note) -> list[tuple[Any, ...]]:
        key = self._store.history_key(note.tenant, note.session_id)
        log = f"{key}:commands"
        if isinstance(note, Began):
            sessions = self._store.histories_key(note.tenant)
            fields = {name: json.dumps(value) for name, value in asdict(note).items()}
            return [
                ("HSET", key, "state", '"live"', *flat(fields)),
                ("PEXPIRE", key, round(_LIVE_S * 1000)),
                ("ZADD", sessions, note.at, note.session_id),
                ("ZREMRANGEBYRANK", sessions, 0, -self._kept.sessions - 1),
                ("PEXPIRE", sessions, round(_LIVE_S * 1000)),
            ]
        if isinstance(note, Ended):
            ms = round(self._kept.retention_s * 1000)
            return [
                ("HSET", key, "state", json.dumps(note.state), "ended_at", json.dumps(note.at)),
                ("PEXPIRE", key, ms),
                ("PEXPIRE", log, ms),
            ]
        return [
            ("RPUSH", log, json.dumps(command_fields(note))),
            ("LTRIM", log, -self._kept.commands, -1),
            ("PEXPIRE", log, round(_LIVE_S * 1000)),
            ("HINCRBY", key, "ran", 1),
        ]

    async def find(
        self, tenant: str, request: models.StoredSessionsRequest
    ) -> models.StoredSessionList:
        found: list[models.StoredSession] = []
        ids = await self._store.range_by_rank(self._store.histories_key(tenant), _LOOKED_AT)
        if request.before is not None:
            ids = ids[ids.index(request.before) + 1 :] if request.before in ids else []
        for start in range(0, len(ids), _PIECE):
            for session, texts in await self._some(tenant, ids[start : start + _PIECE], request):
                if not _fits(session, texts, request):
                    continue
                if len(found) == request.limit:
                    return models.StoredSessionList(sessions=found, truncated=True)
                found.append(session)
        return models.StoredSessionList(sessions=found, truncated=len(ids) == _LOOKED_AT)

    async def _some(
        self, tenant: str, ids: Sequence[str], request: models.StoredSessionsRequest
    ) -> list[tuple[models.StoredSession, list[str]]]:
        keys = [self._store.history_key(tenant, each) for each in ids]
        hashes = await self._store.pipeline([("HGETALL", key) for key in keys])
        counts = await self._store.pipeline([("LLEN", f"{key}:commands") for key in keys])
        logs: list[list[str]] = [[] for _ in keys]
        if request.text is not None:
            logs = await self._store.pipeline(
                [("LRANGE", f"{key}:commands", 0, -1) for key in keys]
            )
        return [
            (_session(fields, count), [json.loads(item)["command"] for item in log])
            for fields, count, log in zip(hashes, counts, logs, strict=True)
            if "session_id" in fields
        ]

    async def get(
        self, tenant: str, session_id: str
    ) -> tuple[models.StoredSession, list[models.StoredCommand], bool] | None:
        key = self._store.history_key(tenant, session_id)
        fields, items = await self._store.pipeline(
            [("HGETALL", key), ("LRANGE", f"{key}:commands", 0, -1)]
        )
        if "session_id" not in fields:
            return None
        log = [stored_command(json.loads(item)) for item in items]
        return _session(fields, len(log)), log, int(fields.get("ran", 0)) > len(log)

    async def tidy(self) -> None:
        """No-op: keys expire, and the list of a tenant is bounded."""


def _session(fields: dict[str, str], commands: int) -> models.StoredSession:
    return stored_session({**{n: json.loads(v) for n, v in fields.items()}, "commands": commands})


def _fits(
    session: models.StoredSession, texts: Sequence[str], request: models.StoredSessionsRequest
) -> bool:
    names = (session.thread_id, session.session_id, session.environment, session.agent)
    return (
        request.thread in (None, session.thread_id)
        and request.environment in (None, session.environment)
        and request.state in (None, session.state)
        and (
            request.text is None
            or any(request.text in text for text in (*texts, *filter(None, names)))
        )
    )


class RedisUsage(SharedUsage, UsageRows):
    """Every ledger writes its own totals under its own name, as they are: written twice, they are
    the same. What a worker has written stays when the worker is gone.

    By tenant and day: a hash of the totals by ledger, and one of the sessions by ledger and
    session."""

    def __init__(self, store: Store, retention: Retention) -> None:
        self._store = store
        self._retention = retention

    async def publish(self, ledger_id: str, rows: Sequence[tuple[str, Row]]) -> None:
        commands: list[tuple[object, ...]] = []
        for tenant, row in rows:
            detail = row.session_id is not None
            key = self._key(tenant, row.day, detail=detail)
            field = f"{ledger_id}/{row.session_id}" if detail else ledger_id
            text = json.dumps({"thread_id": row.thread_id, **asdict(row.figures)})
            briefly = detail or key_in(tenant)
            kept = self._retention.detail_days if briefly else self._retention.days
            commands += [("HSET", key, field, text), ("PEXPIRE", key, (kept + 1) * _DAY_MS)]
        await self._store.pipeline(commands)

    async def others(
        self, ledger_id: str, accounts: Sequence[str], day: date
    ) -> dict[str, Figures]:
        keys = [self._key(account, day, detail=False) for account in accounts]
        hashes = await self._store.pipeline([("HGETALL", key) for key in keys])
        return {
            account: sum(
                (Figures.of(json.loads(text)) for name, text in found.items() if name != ledger_id),
                start=Figures(),
            )
            for account, found in zip(accounts, hashes, strict=True)
        }

    async def rows(self, tenant: str, since: date, until: date, *, detail: bool) -> list[Row]:
        days = days_between(since, until)
        found: list[Row] = []
        for start in range(0, len(days), _DAYS_AT_ONCE):
            some = days[start : start + _DAYS_AT_ONCE]
            keys = [self._key(tenant, day, detail=detail) for day in some]
            hashes = await self._store.pipeline([("HGETALL", key) for key in keys])
            for day, fields in zip(some, hashes, strict=True):
                found += [_row(day, name, text) for name, text in fields.items()]
        return found

    def _key(self, tenant: str, day: date, *, detail: bool) -> str:
        return self._store.usage_key(tenant, f"{day}:sessions" if detail else str(day))


def _row(day: date, name: str, text: str) -> Row:
    _, has_session, session_id = name.partition("/")
    body = json.loads(text)
    return Row(
        day=day,
        figures=Figures.of(body),
        thread_id=body.get("thread_id"),
        session_id=session_id if has_session else None,
    )
