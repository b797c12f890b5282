"""How much is stored for a tenant: artifacts, volumes and checkpoints."""

from __future__ import annotations

import contextlib

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.checkpoints.checkpoints import Checkpoints
from sandbox_server.sessions.counting import Stored
from sandbox_server.storage.storage import Storage
from sandbox_server.volumes.volumes import Volumes


def storing(
    storage: Storage, checkpoints: Checkpoints | None, volumes: Volumes, *, together: bool
) -> Stored:
    """together: whether other servers have the same checkpoints. What cannot be looked at counts as
    nothing: the most of the day counts, and it is looked at again."""

    async def stored(tenant: str) -> tuple[int, int]:
        alone = kept = 0
        with contextlib.suppress(SandboxError):
            alone += storage.artifacts.stored(tenant)
        with contextlib.suppress(SandboxError):
            alone += sum(volume.used for volume in await volumes.of(tenant))
        if checkpoints is not None:
            with contextlib.suppress(SandboxError):
                kept = await checkpoints.stored(tenant)
        return (alone, kept) if together else (alone + kept, 0)

    return stored
