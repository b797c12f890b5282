"""Handlers of checkpoints: taking them, and sessions that begin with them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import CheckpointNotFound, IdempotencyMismatch
from sandbox_sdk.protocol.operations import Handlers
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.checkpoints.manifest import Manifest
from sandbox_server.forking import fork
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.service import answers
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.agents import session_options
from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.points import keep_now, restored_id
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions
from sandbox_server.sessions.registry import Status

_OWN = ("persist", "checkpoint_every", "history", "volumes", "metadata", "lifetime_s",
        "pause_at_end")  # fmt: skip
_KEPT = (*_OWN, "ports", "egress_rules")
"""What a thread keeps when it goes back."""
_NOT_COPIED = (*_OWN, "checkpoint_id")
"""Of what a checkpoint's session was made with: not what one from here has."""


class CheckpointHandlers:
    def __init__(
        self,
        access: SessionAccess,
        facts: ServiceFacts,
        registry: LiveRegistry,
        of: Callable[[str], Sandboxes],
    ) -> None:
        self._table = access.table
        self._access = access
        self._facts = facts
        self._registry = registry
        self._of = of
        self.handlers: Handlers = {
            op.CHECKPOINT: self._take,
            op.CHECKPOINTS: self._list,
            op.GET_CHECKPOINT: self._get,
            op.DELETE_CHECKPOINT: self._delete,
            op.RESTORE: self._restore,
            op.FORK: self._fork,
        }

    async def options(self, tenant: str, request: models.CreateSessionRequest) -> SessionOptions:
        """What a session has that begins with a checkpoint: what the checkpoint's had, where the
        request does not say otherwise. Raises CheckpointNotFound, CheckpointDamaged."""
        assert request.checkpoint_id is not None
        manifest = await self._table.keeper.checkpoints.get(tenant, request.checkpoint_id)
        return self._from(manifest, request, tenant)

    def _from(
        self, manifest: Manifest, request: models.CreateSessionRequest, tenant: str
    ) -> SessionOptions:
        given = request.model_dump(exclude_defaults=True, exclude={"thread_id", "checkpoint_id"})
        before = {name: value for name, value in manifest.asked.items() if name not in _NOT_COPIED}
        if "limits" in before:
            given["limits"] = {**before["limits"], **given.get("limits", {})}
        merged = models.checked(models.CreateSessionRequest, **{**before, **given})
        options = session_options(merged, self._registry.current(), tenant, session_id=None)
        return replace(options, origin=self._table.keeper.origin(manifest))

    async def _take(self, tenant: str, request: models.CheckpointRequest) -> models.Checkpoint:
        checkpoints = self._table.keeper.checkpoints
        session = await self._table.find(tenant, request)
        wanted_id = None
        if request.idempotency_key is not None:
            wanted_id = _id_for(tenant, request.idempotency_key)
            try:
                made = await checkpoints.get(tenant, wanted_id)
            except CheckpointNotFound:
                pass
            else:
                return _same(made, session.record.thread_id, request).answer()
        async with self._access.using(session):
            manifest = await self._table.keeper.take(
                session,
                name=request.name,
                metadata=request.metadata,
                tmp=request.tmp,
                checkpoint_id=wanted_id,
            )
        return manifest.answer()

    async def _list(self, tenant: str, request: models.CheckpointsRequest) -> models.CheckpointList:
        every = await self._table.keeper.checkpoints.of(tenant)
        found = [m for m in every if request.thread_id in (None, m.thread_id)]
        return models.CheckpointList(
            checkpoints=[manifest.answer() for manifest in found[: request.limit]],
            truncated=len(found) > request.limit,
        )

    async def _get(self, tenant: str, request: models.CheckpointTarget) -> models.Checkpoint:
        return (await self._table.keeper.checkpoints.get(tenant, request.checkpoint_id)).answer()

    async def _delete(
        self, tenant: str, request: models.CheckpointTarget
    ) -> models.CheckpointDeleted:
        await self._table.keeper.checkpoints.delete(tenant, request.checkpoint_id)
        return models.CheckpointDeleted(checkpoint_id=request.checkpoint_id)

    async def _restore(self, tenant: str, request: models.RestoreRequest) -> models.Session:
        manifest = await self._table.keeper.checkpoints.get(tenant, request.checkpoint_id)
        session_id = None
        before = await self._table.newest(tenant, request.thread_id)
        if request.idempotency_key is not None:
            session_id = restored_id(tenant, request.thread_id, request.idempotency_key)
            live = self._table.live(tenant, request.thread_id)
            if live is not None and live.record.session_id == session_id:
                return self._answer(live, "existing")
        goes_on = before is not None and before.status != Status.CLEANED
        kept = {name: before.asked[name] for name in _KEPT if before and name in before.asked}
        wanted = (
            models.checked(models.CreateSessionRequest, **kept)
            if goes_on
            else models.CreateSessionRequest()
        )
        options = replace(self._from(manifest, wanted, tenant), session_id=session_id)
        if (live := self._table.live(tenant, request.thread_id)) is not None:
            await keep_now(self._table.keeper, live, f"restore {request.checkpoint_id}", "restore")
        return self._answer(await self._table.restore(tenant, request.thread_id, options))

    def _answer(
        self, session: LiveSession, status: Literal["created", "existing"] = "created"
    ) -> models.Session:
        return answers.session_answer(session, self._facts, status=status, now=time.monotonic())

    async def _fork(self, tenant: str, request: models.ForkRequest) -> models.ForkResult:
        return await fork(self._of(tenant), request)


def _id_for(tenant: str, key: str) -> str:
    digest = hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()
    return f"cp-{digest[:12]}-{digest[12:22]}"


def _same(made: Manifest, thread_id: str, request: models.CheckpointRequest) -> Manifest:
    """Raises IdempotencyMismatch."""
    if (made.thread_id, made.name) != (thread_id, request.name):
        raise IdempotencyMismatch(
            "this idempotency_key was used for a checkpoint of another thread or name"
        )
    return made
