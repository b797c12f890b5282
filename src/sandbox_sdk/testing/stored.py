"""What stays after the sessions of a fake backend: artifacts, and what is remembered."""

from __future__ import annotations

import hashlib
import mimetypes
import posixpath
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sandbox_sdk.protocol.errors import NotFound, SessionNotFound
from sandbox_sdk.protocol.models import (
    Artifact,
    ArtifactList,
    ArtifactsRequest,
    DownloadInfo,
    StoredCommand,
    StoredSession,
    StoredSessionDetail,
    StoredSessionList,
    StoredSessionsRequest,
)
from sandbox_sdk.protocol.sandboxes import Download
from sandbox_sdk.testing.sessions import WORKER, FakeSession
from sandbox_sdk.transfer import ByteChunks


class FakeArtifacts:
    """Artifacts by id, oldest first."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Artifact, bytes]] = {}

    def keep(self, session: FakeSession, files: Mapping[str, bytes]) -> list[Artifact]:
        return [self._keep(session, path, data) for path, data in files.items()]

    def _keep(self, session: FakeSession, path: str, data: bytes) -> Artifact:
        artifact = Artifact(
            artifact_id=f"{uuid.uuid4().hex}@{WORKER}",
            thread_id=session.thread_id,
            session_id=session.session_id,
            path=path,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            mime=mimetypes.guess_type(path)[0] or "application/octet-stream",
            created_at=datetime.now(UTC),
        )
        self._kept[artifact.artifact_id] = artifact, data
        return artifact

    def find(self, request: ArtifactsRequest) -> ArtifactList:
        found = [
            artifact
            for artifact, _ in reversed(self._kept.values())
            if request.thread_id in (None, artifact.thread_id)
            and request.session_id in (None, artifact.session_id)
        ]
        return ArtifactList(artifacts=found[: request.limit], truncated=len(found) > request.limit)

    def download(self, artifact_id: str) -> Download:
        """Raises NotFound."""
        artifact, data = self._get(artifact_id)
        info = DownloadInfo(
            filename=posixpath.basename(artifact.path),
            path=artifact.path,
            type="file",
            size=artifact.size,
            sha256=artifact.sha256,
            modified_at=artifact.created_at,
        )
        return Download(info, aiter(ByteChunks(data)))

    def delete(self, artifact_id: str) -> None:
        """Raises NotFound."""
        self._get(artifact_id)
        del self._kept[artifact_id]

    def _get(self, artifact_id: str) -> tuple[Artifact, bytes]:
        if artifact_id not in self._kept:
            raise NotFound(f"no artifact {artifact_id!r}: it was deleted, or never was")
        return self._kept[artifact_id]


def stored_sessions(
    sessions: Sequence[FakeSession], request: StoredSessionsRequest
) -> StoredSessionList:
    newest = list(reversed(sessions))
    if request.before is not None:
        ids = [session.session_id for session in newest]
        newest = newest[ids.index(request.before) + 1 :] if request.before in ids else []
    found = [_stored(session) for session in newest if _fits(session, request)]
    return StoredSessionList(sessions=found[: request.limit], truncated=len(found) > request.limit)


def stored_detail(
    sessions: Sequence[FakeSession], session_id: str, artifacts: list[Artifact]
) -> StoredSessionDetail:
    """Raises SessionNotFound."""
    for session in sessions:
        if session.session_id == session_id:
            log = [
                StoredCommand(
                    command_id=command.command_id,
                    command=command.request.command,
                    at=session.created_at,
                    exit_code=command.exit_code,
                    duration_ms=command.facts()["duration_ms"],
                    output=command.answer.output + command.answer.stderr,
                )
                for command in session.commands
            ]
            return StoredSessionDetail(**_fields(session), log=log, artifacts=artifacts)
    raise SessionNotFound.of(thread_id=None, session_id=session_id)


def _stored(session: FakeSession) -> StoredSession:
    return StoredSession(**_fields(session))


def _fields(session: FakeSession) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "sandbox_id": session.sandbox_id,
        "thread_id": session.thread_id,
        "generation": session.generation,
        "provider": session.provider,
        "environment": session.wanted.environment,
        "agent": session.wanted.agent,
        "worker": WORKER,
        "state": _state(session),
        "created_at": session.created_at,
        "ended_at": None if session.live else datetime.now(UTC),
        "commands": len(session.commands),
    }


def _state(session: FakeSession) -> str:
    return "live" if session.live or session.ended is None else session.ended.value


def _fits(session: FakeSession, request: StoredSessionsRequest) -> bool:
    texts = [session.thread_id, session.session_id, session.wanted.environment or ""]
    texts += [command.request.command for command in session.commands]
    return (
        request.thread in (None, session.thread_id)
        and request.environment in (None, session.wanted.environment)
        and request.state in (None, _state(session))
        and (request.text is None or any(request.text in text for text in texts))
    )
