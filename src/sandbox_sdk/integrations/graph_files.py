"""Which files of a sandbox belong to each checkpoint of a graph.

A graph's checkpoint names the sandbox checkpoint with its files, and a note in the box says what
the box has. Where the two differ, the sandbox is taken to where the graph is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from sandbox_sdk.errors import SandboxError, SessionLost, SessionNotFound
from sandbox_sdk.integrations.graph_note import (
    Note,
    find_beginning,
    read_note,
    take_beginning,
    write_note,
)
from sandbox_sdk.integrations.operations import Operations
from sandbox_sdk.integrations.tools import AsyncSandboxTools

log = logging.getLogger("sandbox.langgraph")

SAVE_S = 120.0
"""How long a tool waits for the graph's checkpoint it runs at, which LangGraph saves meanwhile."""
THREADS_REMEMBERED = 1000
CHECKPOINTS_REMEMBERED = 1000
"""Of each thread."""

CHECKPOINT_KEY = "sandbox_checkpoint"
NOT_KEPT_KEY = "sandbox_not_kept"


class FilesUnavailable(Exception):
    """The files of a graph's checkpoint cannot be had. No tool ran, and the sandbox is as it was.

    Not a SandboxError: those are told to the model, and this is for the program. Its cause is the
    SandboxError, where there is one.
    """

    def __init__(self, thread_id: str, graph_checkpoint: str, reason: str) -> None:
        super().__init__(
            f"thread {thread_id!r} cannot have the files of its checkpoint"
            f" {graph_checkpoint or '(the first)'}: {reason}"
        )
        self.thread_id = thread_id
        self.graph_checkpoint = graph_checkpoint
        self.reason = reason


@dataclass(frozen=True)
class Files:
    """The files of a graph's checkpoint; by default, those of before the first tool."""

    checkpoint_id: str | None = None
    not_kept: str | None = None
    """Why there is no sandbox checkpoint of them; begins with the graph's checkpoint."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Files:
        return cls(metadata.get(CHECKPOINT_KEY), metadata.get(NOT_KEPT_KEY))

    def metadata(self) -> dict[str, str]:
        named = {CHECKPOINT_KEY: self.checkpoint_id, NOT_KEPT_KEY: self.not_kept}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class GraphCheckpoint:
    id: str
    parent: str | None
    source: str | None
    versions: Mapping[str, Any]
    """Of the channels: a copy has those of the original."""
    files: Files


@dataclass
class _Thread:
    """A graph's thread, as far as this process knows it."""

    id: str
    saved: dict[str, GraphCheckpoint] = field(default_factory=dict)
    outermost: bool = False
    one_more: anyio.Event = field(default_factory=anyio.Event)
    """Set when one more is saved."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    tools: AsyncSandboxTools | None = None
    prepared_at: str | None = None
    """The graph's checkpoint whose files the box was seen to have."""
    note: Note | None = None
    """What the box says, if this process wrote it."""
    inside: str | None = None
    """The graph's checkpoint at which the last run was sent into the middle of a subgraph."""
    lost: bool = False
    """Whether a box has gone with changes that are in no checkpoint."""

    def to_be_kept(self, made: GraphCheckpoint, before: Files) -> bool:
        """Whether the box has files of this checkpoint that are not those of the one before. A
        fork has the files of what it was forked from, whatever a failed step did to the box."""
        if self.note is None or self.tools is None or made.source == "fork":
            return False
        untaken = before.not_kept is not None and self.note == Note(before.not_kept)
        return untaken or self.note.changed_at == (made.parent or "")

    def inherited(self, made: GraphCheckpoint) -> Files:
        """The files of the checkpoint that this one was made from. A copy (`__copy__` of
        update_state) has the parent of its original, and is known by its versions."""
        before = self.saved.get(made.parent or "")
        if made.source == "fork" and (before is None or before.versions != made.versions):
            for each in reversed([*self.saved.values()]):
                if each.parent == made.parent and each.versions == made.versions:
                    return each.files
        return before.files if before is not None else Files()


class GraphFiles:
    """The threads of a saver. Its coroutines run in the background loop."""

    def __init__(self) -> None:
        self._threads: dict[str, _Thread] = {}
        self._remembering = threading.Lock()

    def __repr__(self) -> str:
        return f"<GraphFiles {len(self._threads)} threads>"

    def _thread(self, thread_id: str) -> _Thread:
        with self._remembering:
            thread = self._threads.pop(thread_id, None) or _Thread(thread_id)
            self._threads[thread_id] = thread
            if len(self._threads) > THREADS_REMEMBERED:
                del self._threads[next(iter(self._threads))]
        return thread

    def remember(self, thread_id: str, checkpoint: GraphCheckpoint) -> None:
        """A checkpoint of the graph that was loaded or saved; from any thread."""
        saved = self._thread(thread_id).saved
        with self._remembering:
            saved.pop(checkpoint.id, None)
            saved[checkpoint.id] = checkpoint
            if len(saved) > CHECKPOINTS_REMEMBERED:
                del saved[next(iter(saved))]

    def forget(self, thread_id: str) -> None:
        self._threads.pop(thread_id, None)

    def knows(self, thread_id: str, checkpoint_id: str) -> bool:
        return checkpoint_id in self._thread(thread_id).saved

    def newest(self, thread_id: str) -> str:
        """The newest checkpoint that is saved; "" for none. Ids are in the order of time."""
        return max([*self._thread(thread_id).saved], default="")

    def began(self, thread_id: str) -> None:
        """A graph looks for a checkpoint of this thread, and is not within a run of another."""
        self._thread(thread_id).outermost = True

    def has(self, thread_id: str) -> bool:
        """Whether it is the thread of a graph, and not of one that is run within another, whose
        checkpoints are those of the other's steps."""
        return self._thread(thread_id).outermost

    def entered_subgraph(self, thread_id: str, graph_checkpoint: str) -> None:
        self._thread(thread_id).inside = graph_checkpoint

    # Before a tool

    async def prepare(
        self, tools: AsyncSandboxTools, thread_id: str, at: str, *, changes: bool
    ) -> None:
        """Give the sandbox the files of the graph's checkpoint at which a tool is to run. Raises
        FilesUnavailable."""
        thread = self._thread(thread_id)
        files = await self._saved(thread, at)
        async with thread.lock:
            noted = thread.note.changed_at if thread.note else None
            if thread.prepared_at == at and (noted == at or not changes):
                return
            thread.tools = tools
            thread.note = thread.prepared_at = None
            try:
                async with tools.unprepared(thread_id) as box:
                    await self._prepare(thread, box, at, files, changes=changes)
            except SandboxError as error:
                raise FilesUnavailable(thread_id, at, error.message) from error
            thread.prepared_at = at

    async def _saved(self, thread: _Thread, at: str) -> Files:
        """The files of a checkpoint, which the graph may be saving at this moment."""
        if not at:
            return Files()
        with anyio.move_on_after(SAVE_S):
            while at not in thread.saved:
                await thread.one_more.wait()
        if at not in thread.saved:
            raise FilesUnavailable(thread.id, at, f"it was not saved within {SAVE_S:.0f} s")
        return thread.saved[at].files

    async def _prepare(
        self, thread: _Thread, box: Operations, at: str, files: Files, *, changes: bool
    ) -> None:
        has = await read_note(box)
        wanted = files.not_kept or files.checkpoint_id
        if wanted is None and has is None:  # The first tool of all.
            wanted = await take_beginning(box)
            has = Note(wanted)
        elif wanted is None:
            wanted = await find_beginning(box)
        if has is None or has.files != wanted or has.changed_at not in (None, at):
            await self._rewind(thread, box, at, files, wanted)
            has = None
        changed = changes or (has is not None and has.changed_at is not None)
        note = Note(wanted, at if changed else None)
        if note != has:
            await write_note(box, note)
        thread.note = note

    async def _rewind(
        self, thread: _Thread, box: Operations, at: str, files: Files, wanted: str
    ) -> None:
        if files.not_kept is not None:
            raise FilesUnavailable(thread.id, at, f"they were not kept: {files.not_kept}")
        if thread.inside == at:
            raise FilesUnavailable(
                thread.id, at, "a checkpoint inside a subgraph has no files of its own"
            )
        await box.rewind(wanted, told=thread.lost)
        thread.lost = False

    # After a step

    async def keep(self, thread_id: str, made: GraphCheckpoint) -> Files:
        """The files of a graph's checkpoint that is about to be saved: a new sandbox checkpoint if
        tools have run since its parent. Why there can be none is part of the answer."""
        thread = self._thread(thread_id)
        async with thread.lock:
            files = made.files
            if files == Files():
                files = thread.inherited(made)
                if thread.to_be_kept(made, files):
                    files = await self._take(thread, made, files)
            kept = GraphCheckpoint(made.id, made.parent, made.source, made.versions, files)
            self.remember(thread_id, kept)
            thread.one_more.set()
            thread.one_more = anyio.Event()
        return files

    async def _take(self, thread: _Thread, made: GraphCheckpoint, before: Files) -> Files:
        assert thread.tools is not None
        try:
            async with thread.tools.unprepared(thread.id) as box:
                if await read_note(box) not in (None, thread.note):
                    log.warning("thread %s: another process has moved its sandbox", thread.id)
                    thread.note = thread.prepared_at = None
                    return before
                metadata = {"langgraph": made.id}
                taken = await box.sandbox.checkpoint("langgraph", metadata=metadata)
                files = Files(taken.checkpoint_id)
        except (SessionNotFound, SessionLost) as error:
            log.warning("thread %s: its sandbox was lost in this step: %s", thread.id, error)
            thread.lost, thread.note, thread.prepared_at = True, None, None
            return before
        except SandboxError as error:
            log.warning("thread %s: no checkpoint of its files: %s", thread.id, error)
            files = Files(not_kept=f"{made.id}: {error.message[:500]}")
        await self._note(thread, Note(files.checkpoint_id or files.not_kept or ""))
        return files

    async def _note(self, thread: _Thread, note: Note) -> None:
        """Tell the box what it has. If that fails, the next tool rewinds it to the same files."""
        assert thread.tools is not None
        thread.note = thread.prepared_at = None
        try:
            async with thread.tools.unprepared(thread.id) as box:
                await write_note(box, note)
        except SandboxError as error:
            log.warning("thread %s: no note in its sandbox: %s", thread.id, error)
        else:
            thread.note = note
