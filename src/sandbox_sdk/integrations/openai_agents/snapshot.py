"""Snapshots of the OpenAI Agents SDK that are checkpoints of the sandbox.

The SDK's own are archives of the workspace that pass through the program. These stay on the
server, and have the home folder and the state of the shell as well.
"""

from __future__ import annotations

import io
from typing import Literal

from agents.sandbox.errors import SnapshotNotRestorableError
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec

from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.integrations.openai_agents.failures import PLACE, keeping, restoring
from sandbox_sdk.protocol.models import Session


class CheckpointSnapshot(SnapshotBase):
    """A checkpoint that a session takes when it stops, and goes back to when it is resumed. A
    session of another thread that is created with it begins from it."""

    type: Literal["agent_sandbox_checkpoint"] = "agent_sandbox_checkpoint"
    checkpoint_id: str | None = None
    """None until one is taken."""

    async def taken(self, client: AsyncSandboxClient) -> CheckpointSnapshot:
        """This snapshot, with a checkpoint of the sandbox as it is. Raises SnapshotPersistError."""
        with keeping(self.id):
            checkpoint = await client.checkpoint("openai-agents", metadata={"snapshot": self.id})
        return self.model_copy(update={"checkpoint_id": checkpoint.checkpoint_id})

    async def begin(self, client: AsyncSandboxClient) -> tuple[Session, bool]:
        """The session of a thread that has none, and whether it began with the checkpoint. Raises
        SnapshotNotRestorableError if the checkpoint is gone, SnapshotRestoreError."""
        if self.checkpoint_id is None:
            return await client.create_session(), False
        with restoring(self.id):
            session = await client.create_session(checkpoint_id=self.checkpoint_id)
        return session, not session.not_applied

    async def rewind(self, client: AsyncSandboxClient) -> Session:
        """Take a live session back. Raises what begin() does."""
        if self.checkpoint_id is None:
            raise SnapshotNotRestorableError(snapshot_id=self.id, path=PLACE)
        with restoring(self.id):
            return await client.rewind(self.checkpoint_id)

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:  # noqa: ARG002
        return self.checkpoint_id is not None

    # For the sessions of other clients, which have no checkpoints.

    async def persist(
        self,
        data: io.IOBase,  # noqa: ARG002
        *,
        dependencies: Dependencies | None = None,  # noqa: ARG002
    ) -> None:
        raise TypeError("CheckpointSnapshot works with ThreadSandboxClient only")

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:  # noqa: ARG002
        raise TypeError("CheckpointSnapshot works with ThreadSandboxClient only")


class CheckpointSnapshotSpec(SnapshotSpec):
    """For `snapshot=` of a SandboxRunConfig or of `create()`.

    checkpoint_id: the session begins with this one, taken by whomever.
    """

    type: Literal["agent_sandbox_checkpoint"] = "agent_sandbox_checkpoint"
    checkpoint_id: str | None = None

    def build(self, snapshot_id: str) -> CheckpointSnapshot:
        return CheckpointSnapshot(id=snapshot_id, checkpoint_id=self.checkpoint_id)
