"""Which ports of sessions are exposed, and to whom. Tokens are kept as digests."""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

from sandbox_server.storage.database import Database

TOKEN_FORM = re.compile(r"preview_[A-Za-z0-9_-]{43}", re.ASCII)
"""What our tokens look like, so that none of them is passed on to a box, not even an old one."""
_TOKENS = 8
"""Of one preview: after a restart of the server a new one is made, and earlier ones stay valid."""
SCHEMA = """
create table if not exists previews (
    session_id text primary key, tenant text not null, previews text not null
);
"""


def new_token() -> str:
    return f"preview_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoredPreview:
    """One port."""

    public: bool
    created_at: float
    digests: tuple[str, ...] = ()

    def with_token(self, token: str) -> StoredPreview:
        return replace(self, digests=(*self.digests, digest(token))[-_TOKENS:])


@dataclass(frozen=True, kw_only=True)
class AllPorts:
    """How every port of a session is seen, exposed or not."""

    public: bool = True
    unpause: bool = True
    """Whether a request wakes the session."""
    host: str | None = None
    """The Host header that applications see, with `${PORT}` in it."""

    def host_for(self, port: int) -> str | None:
        return None if self.host is None else self.host.replace("${PORT}", str(port))


@dataclass(frozen=True, kw_only=True)
class SessionPreviews:
    """The previews of a session, by port."""

    tenant: str
    session_id: str
    ports: Mapping[int, StoredPreview] = field(default_factory=dict)
    all_ports: AllPorts | None = None
    """None: those of `ports` alone."""
    ended_at: float | None = None
    """Of a session that has ended with all of its ports: whoever asks is told."""

    @property
    def is_empty(self) -> bool:
        return not self.ports and self.all_ports is None

    def allows(self, port: int, tokens: Iterable[str]) -> bool:
        """Whether somebody with these tokens may see what is at the port."""
        stored = self.ports.get(port)
        # No early exit: the time must not depend on which one matches.
        right = [self.is_token(port, token) for token in tokens]
        if stored is None:
            return self.all_ports is not None and self.all_ports.public
        return stored.public or any(right)

    def is_token(self, port: int, token: str) -> bool:
        """Whether it is a token of the preview."""
        stored, shown = self.ports.get(port), digest(token)
        known = () if stored is None else stored.digests
        matches = [hmac.compare_digest(each, shown) for each in known]
        return any(matches)

    def with_port(self, port: int, stored: StoredPreview | None) -> SessionPreviews:
        """With the port as given; None: without it."""
        others = {each: kept for each, kept in self.ports.items() if each != port}
        return replace(self, ports=others if stored is None else {**others, port: stored})

    def ended(self) -> SessionPreviews | None:
        """What is remembered of them after the session; None: nothing."""
        if self.all_ports is None:
            return None
        return replace(self, ports={}, ended_at=time.time())


def encode(previews: SessionPreviews) -> str:
    ports = {str(port): asdict(each) for port, each in previews.ports.items()}
    kept: dict[str, Any] = {"tenant": previews.tenant, "ports": ports}
    if previews.all_ports is not None:
        kept["all"] = asdict(previews.all_ports)
    if previews.ended_at is not None:
        kept["ended_at"] = previews.ended_at
    return json.dumps(kept)


def decode(session_id: str, text: str) -> SessionPreviews:
    found = json.loads(text)
    ports = {
        int(port): StoredPreview(
            public=bool(each["public"]),
            created_at=float(each["created_at"]),
            digests=tuple(each["digests"]),
        )
        for port, each in found["ports"].items()
    }
    shown = found.get("all")
    return SessionPreviews(
        tenant=found["tenant"],
        session_id=session_id,
        ports=ports,
        # Without fields of a later version.
        all_ports=shown and AllPorts(**{each.name: shown[each.name] for each in fields(AllPorts)}),
        ended_at=found.get("ended_at"),
    )


class PreviewTable:
    """A table in the worker's SQLite file, which all processes of a server share.

    Raises RuntimeUnavailable if it cannot be used.
    """

    def __init__(self, db: Database | None = None) -> None:
        """db: with SCHEMA; without, one in memory."""
        self._db = db or Database(None, SCHEMA)

    def of(self, session_id: str) -> SessionPreviews | None:
        rows = self._db.execute("select previews from previews where session_id = ?", session_id)
        return decode(session_id, rows[0][0]) if rows else None

    def keep(self, previews: SessionPreviews) -> None:
        if previews.is_empty:
            self.drop(previews.session_id)
            return
        self._db.execute(
            "insert or replace into previews (session_id, tenant, previews) values (?, ?, ?)",
            previews.session_id, previews.tenant, encode(previews),
        )  # fmt: skip

    def drop(self, session_id: str) -> None:
        self._db.execute("delete from previews where session_id = ?", session_id)

    def end(self, session_id: str) -> None:
        """Keep what is told of a session that has ended."""
        found = self.of(session_id)
        if found is not None and (ended := found.ended()) is not None:
            self.keep(ended)
        else:
            self.drop(session_id)

    def forget(self, before: float) -> None:
        """Those of sessions that ended before then."""
        self._db.execute(
            "delete from previews where json_extract(previews, '$.ended_at') < ?", before
        )
