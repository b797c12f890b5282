"""Checkpoints of a fake backend."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from sandbox_sdk.protocol.errors import CheckpointNotFound, Conflict, IdempotencyMismatch
from sandbox_sdk.protocol.models import (
    Checkpoint,
    CheckpointDeleted,
    CheckpointList,
    CheckpointRequest,
    CheckpointsRequest,
    CheckpointTarget,
    CreateSessionRequest,
    ForkRequest,
    RestoreRequest,
    Target,
)
from sandbox_sdk.testing.files import FakeFiles
from sandbox_sdk.testing.sessions import End, FakeSession, FakeSessions


@dataclass(frozen=True)
class _Kept:
    about: Checkpoint
    files: FakeFiles
    cwd: str
    wanted: CreateSessionRequest


class FakeCheckpoints:
    """Checkpoints by id, oldest first."""

    def __init__(self, sessions: FakeSessions) -> None:
        self._sessions = sessions
        self._kept: dict[str, _Kept] = {}
        self._by_key: dict[str, str] = {}
        self._restored: dict[str, FakeSession] = {}

    def take(self, request: CheckpointRequest) -> Checkpoint:
        """Raises SessionNotFound, IdempotencyMismatch."""
        session = self._sessions.find(request)
        key = request.idempotency_key
        if key in self._by_key:
            made = self._get(self._by_key[key]).about
            if (made.thread_id, made.name) != (session.thread_id, request.name):
                raise IdempotencyMismatch(
                    "this idempotency_key was used for a checkpoint of another thread or name"
                )
            return made
        session.use()
        files = session.files.copy() if request.tmp else session.files.copy(without="/tmp/")
        about = Checkpoint(
            checkpoint_id=f"cp-{uuid.uuid4().hex[:12]}",
            thread_id=session.thread_id,
            session_id=session.session_id,
            generation=session.generation,
            name=request.name,
            metadata=request.metadata,
            created_at=datetime.now(UTC),
            parent=session.checkpoint_id,
            environment=session.wanted.environment,
            cwd=session.cwd,
            files=len(files),
            folders=0,
            size=sum(map(len, files.values())),
            added=0,
            running=[command.request.command for command in session.running],
        )
        session.checkpoint_id = about.checkpoint_id
        self._kept[about.checkpoint_id] = _Kept(about, files, session.cwd, session.wanted)
        if key is not None:
            self._by_key[key] = about.checkpoint_id
        return about

    def find(self, request: CheckpointsRequest) -> CheckpointList:
        every = [kept.about for kept in reversed(self._kept.values())]
        found = [each for each in every if request.thread_id in (None, each.thread_id)]
        return CheckpointList(
            checkpoints=found[: request.limit], truncated=len(found) > request.limit
        )

    def get(self, request: CheckpointTarget) -> Checkpoint:
        """Raises CheckpointNotFound."""
        return self._get(request.checkpoint_id).about

    def delete(self, request: CheckpointTarget) -> CheckpointDeleted:
        """Raises CheckpointNotFound."""
        self._get(request.checkpoint_id)
        del self._kept[request.checkpoint_id]
        return CheckpointDeleted(checkpoint_id=request.checkpoint_id)

    def wanted(self, checkpoint_id: str) -> CreateSessionRequest:
        """What its session was made with. Raises CheckpointNotFound."""
        return self._get(checkpoint_id).wanted

    def fill(self, session: FakeSession, checkpoint_id: str) -> None:
        kept = self._get(checkpoint_id)
        session.files, session.cwd = kept.files.copy(), kept.cwd
        session.checkpoint_id = session.began_with = checkpoint_id

    def restore(self, request: RestoreRequest) -> tuple[FakeSession, bool]:
        """The new session, and whether an earlier call made it."""
        kept = self._get(request.checkpoint_id)
        key = f"{request.thread_id} {request.idempotency_key}"
        made = self._restored.get(key)
        if request.idempotency_key is not None and made is not None and made.live:
            return made, True
        old = self._sessions.newest(request.thread_id)
        if old is not None and old.live:
            old.ended = End.CLEANED
        session, _ = self._sessions.open(Target(thread_id=request.thread_id), kept.wanted)
        self.fill(session, request.checkpoint_id)
        self._restored[key] = session
        return session, False

    def fork(self, request: ForkRequest) -> tuple[str, list[FakeSession]]:
        """Raises Conflict."""
        checkpoint_id = request.checkpoint_id
        if checkpoint_id is None:
            wanted = CheckpointRequest(
                thread_id=request.thread_id,
                name=f"fork of {request.thread_id}",
                idempotency_key=request.idempotency_key,
            )
            checkpoint_id = self.take(wanted).checkpoint_id
        made = []
        for thread_id in request.into:
            session, state = self._sessions.open(
                Target(thread_id=thread_id), self.wanted(checkpoint_id)
            )
            if state != "live":
                self.fill(session, checkpoint_id)
            elif session.began_with != checkpoint_id:
                raise Conflict(f"thread {thread_id!r} has a session already; end it, or choose"
                               " another thread_id", thread_id=thread_id)  # fmt: skip
            made.append(session)
        return checkpoint_id, made

    def _get(self, checkpoint_id: str) -> _Kept:
        if checkpoint_id not in self._kept:
            raise CheckpointNotFound(
                f"no checkpoint {checkpoint_id!r}: it was deleted, or never was; list them to see"
                " which there are"
            )
        return self._kept[checkpoint_id]
