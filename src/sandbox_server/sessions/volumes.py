"""Which sessions have which volumes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sandbox_sdk.protocol.models import VolumeMount, VolumeUse
from sandbox_server.sessions.live import Key, LiveSession
from sandbox_server.sessions.registry import Record
from sandbox_server.volumes.volumes import in_use


def volumes_of(record: Record) -> list[VolumeMount]:
    """Those that a session was asked to have."""
    return [VolumeMount(**each) for each in record.asked.get("volumes", ())]


def uses(sessions: Iterable[LiveSession], tenant: str, name: str) -> list[VolumeUse]:
    """The threads that have a volume."""
    found = [use for _, use in _users(sessions, tenant, name)]
    return sorted(found, key=lambda use: use.thread_id)


def _users(
    sessions: Iterable[LiveSession], tenant: str, name: str
) -> list[tuple[LiveSession, VolumeUse]]:
    return [
        (session, VolumeUse(thread_id=session.record.thread_id, mode=mount.mode))
        for session in sessions
        if session.record.tenant == tenant
        for mount in volumes_of(session.record)
        if mount.name == name
    ]


async def require_free(
    sessions: Sequence[LiveSession], key: Key, wanted: Iterable[VolumeMount]
) -> None:
    """Raises Conflict if another session of this process has a volume in a way that leaves no room
    for the wanted one. What others have, the volume itself tells when it is attached."""
    tenant, thread_id = key
    for mount in wanted:
        if mount.name is None:
            continue
        for session, use in _users(sessions, tenant, mount.name):
            in_the_way = use.thread_id != thread_id and "rw" in (use.mode, mount.mode)
            if in_the_way and await session.box.is_alive():
                raise in_use(mount.name, use.thread_id, use.mode)
