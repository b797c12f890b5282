"""Artifacts as a client has them: what they are, and their bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sandbox_sdk import transfer
from sandbox_sdk.background import Background
from sandbox_sdk.blocking import Blocking, blocking
from sandbox_sdk.protocol.models import Artifact
from sandbox_sdk.protocol.sandboxes import Sandboxes


class AsyncArtifactFile:
    """A file that a run has left. `path`, `size`, `sha256`, `mime`, `created_at` and the other
    fields of `info` are its attributes."""

    def __init__(self, sandboxes: Sandboxes, info: Artifact) -> None:
        self.info = info
        self._sandboxes = sandboxes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.path} {self.info.size} bytes>"

    def __getattr__(self, name: str) -> Any:
        if name in Artifact.model_fields:
            return getattr(self.info, name)
        raise AttributeError(name)

    async def read(self) -> bytes:
        """Its bytes. Raises NotFound if it was deleted meanwhile, TransferCorrupted."""
        async with self._sandboxes.download_artifact(self.info.artifact_id) as download:
            return await transfer.read(download)

    async def save(self, local_path: str | os.PathLike[str] | None = None) -> Path:
        """Write it to local_path, or to a file in it if that is a folder; by default the current
        folder. Returns where it was written. Raises NotFound, TransferCorrupted."""
        async with self._sandboxes.download_artifact(self.info.artifact_id) as download:
            return await transfer.save(download, Path(local_path or "."))

    async def delete(self) -> None:
        """Delete it. The file in the sandbox stays. Raises NotFound."""
        await self._sandboxes.delete_artifact(self.info.artifact_id)


class ArtifactFile(Blocking):
    """A file that a run has left. `path`, `size`, `sha256`, `mime`, `created_at` and the other
    fields of `info` are its attributes."""

    def __init__(self, file: AsyncArtifactFile, background: Background, *, client: object) -> None:
        """client: kept here, because a client that nobody holds is closed."""
        super().__init__(file, background)
        self._client = client
        self.info = file.info

    __getattr__ = AsyncArtifactFile.__getattr__
    read = blocking(AsyncArtifactFile.read)
    save = blocking(AsyncArtifactFile.save)
    delete = blocking(AsyncArtifactFile.delete)
