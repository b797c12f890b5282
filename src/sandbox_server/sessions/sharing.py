"""What a worker has recorded of its boxes, written on those that others can take over."""

from __future__ import annotations

from functools import partial

import structlog

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.runtime.base import Box, SharedBox
from sandbox_server.sessions.ledger import Ledger, note_of
from sandbox_server.tasks import TaskSet

log = structlog.get_logger()

_CLOSE_S = 5.0


class Sharing:
    """The entries of the ledger, on boxes that belong to no machine. Close it."""

    def __init__(self, ledger: Ledger, worker: str, *, on: bool = True) -> None:
        """on: whether there are others who could take boxes over."""
        self._ledger = ledger
        self._worker = worker
        self._on = on
        self._changed: dict[str, SharedBox] = {}
        self._writes: TaskSet[None] = TaskSet()

    def __repr__(self) -> str:
        return f"<Sharing of {self._worker} {len(self._changed)} unwritten>"

    def of(self, box: Box) -> SharedBox | None:
        """The box, if others can take it over."""
        return box if self._on and isinstance(box, SharedBox) else None

    async def claim(self, box: Box) -> bool:
        """Write the entry of a box on it, with this worker as its owner; False if another has
        claimed it. Raises RuntimeUnavailable."""
        if (shared := self.of(box)) is None:
            return True
        return await shared.claim(self._worker, note_of(self._ledger.entry(box.id)))

    async def warmed(self, box: Box) -> None:
        """The same for one that nobody uses. If that fails, nobody takes the box over."""
        entry = self._ledger.entry(box.id)
        if (shared := self.of(box)) is None or entry is None:
            return
        try:
            await shared.write(note_of(entry), warm=entry.build)
        except SandboxError as exc:
            log.warning("box.not_shared", box=box.id, why=exc.message)

    def keep(self, box: Box) -> None:
        """Write an entry that has changed, in the background."""
        if (shared := self.of(box)) is not None:
            self._changed[box.id] = shared
            self._writes.start(partial(self._write, box.id))

    async def _write(self, box_id: str) -> None:
        """The latest entry, unless an earlier write has seen it already."""
        if (box := self._changed.pop(box_id, None)) is None:
            return
        try:
            await box.write(note_of(self._ledger.entry(box_id)))
        except SandboxError as exc:
            log.warning("box.not_shared", box=box_id, why=exc.message)

    async def close(self) -> None:
        await self._writes.stop(after_s=_CLOSE_S)
