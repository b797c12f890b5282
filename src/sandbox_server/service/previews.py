"""Handlers of previews: which ports are exposed. previews/ serves them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import Capacity, NotFound
from sandbox_sdk.protocol.operations import Handlers
from sandbox_server.service.answers import at
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.preview_address import Origin, PreviewAddress, PreviewSite
from sandbox_server.sessions.previews import SessionPreviews, StoredPreview, new_token
from sandbox_server.sessions.table import SessionTable

log = structlog.get_logger()

MAX_PREVIEWS = 32
"""Of one session."""


class PreviewHandlers:
    def __init__(self, table: SessionTable, site: PreviewSite | None) -> None:
        """site: None for a worker, whose coordinators tell the URLs."""
        self._table = table
        self._site = site
        self._changing = asyncio.Lock()
        self.handlers: Handlers = {
            op.EXPOSE: self._expose,
            op.PREVIEWS: self._list,
            op.UNEXPOSE: self._unexpose,
        }

    async def _expose(self, tenant: str, request: models.ExposeRequest) -> models.Preview:
        address = await self._address()
        session = await self._table.find(tenant, request)
        port, tokens = request.port, session.preview_tokens
        async with self._changing:
            before = self._of(session)
            stored = before.ports.get(port) or _new(before)
            stored = replace(stored, public=request.public)
            if not stored.public and port not in tokens:
                token = new_token()
                stored = stored.with_token(token)
            else:
                token = tokens.get(port, "")
            if stored != before.ports.get(port):
                await self._table.keep_previews(session, before.with_port(port, stored))
            if token:
                tokens[port] = token
        log.info("preview.exposed", thread=session.record.thread_id, port=port,
                 public=stored.public)  # fmt: skip
        return _answer(session, port, stored, address, None if stored.public else token)

    async def _list(self, tenant: str, target: models.Target) -> models.PreviewList:
        session = await self._table.find(tenant, target)
        ports = self._of(session).ports
        address = await self._address() if ports else None
        found = [_answer(session, port, ports[port], address, None) for port in sorted(ports)]
        return models.PreviewList(previews=found)

    async def _unexpose(self, tenant: str, request: models.PreviewTarget) -> models.Unexposed:
        session = await self._table.find(tenant, request)
        async with self._changing:
            before = self._of(session)
            if request.port not in before.ports:
                raise NotFound(f"port {request.port} is not exposed")
            session.preview_tokens.pop(request.port, None)
            await self._table.keep_previews(session, before.with_port(request.port, None))
        log.info("preview.ended", thread=session.record.thread_id, port=request.port)
        return models.Unexposed(port=request.port)

    async def _address(self) -> PreviewAddress | None:
        return None if self._site is None else await self._site()

    def _of(self, session: LiveSession) -> SessionPreviews:
        record = session.record
        return self._table.previews_of(record.session_id) or SessionPreviews(
            tenant=record.tenant, session_id=record.session_id
        )


def _new(before: SessionPreviews) -> StoredPreview:
    if len(before.ports) >= MAX_PREVIEWS:
        raise Capacity(
            f"at capacity: {MAX_PREVIEWS} previews of one session; end one with unexpose"
        )
    return StoredPreview(public=False, created_at=time.time())


def _answer(
    session: LiveSession,
    port: int,
    stored: StoredPreview,
    address: PreviewAddress | None,
    token: str | None,
) -> models.Preview:
    session_id = session.record.session_id
    return models.Preview(
        port=port,
        session_id=session_id,
        url="" if address is None else address.url(Origin(session_id, port), token),
        token=token,
        public=stored.public,
        created_at=at(stored.created_at),
        expires_at=at(session.expires_at(time.monotonic())),
    )
