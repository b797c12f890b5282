"""A note in a box: what its files are, for the graph that uses it.

It is one of the files, so it is right after a rewind, in a fork, and in a box that went on after a
loss, and every process can read it. An agent may overwrite it, but only to its own harm: it is
compared with what the graph says, and nothing is done because of it alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sandbox_sdk.errors import (
    CheckpointNotFound,
    FileMissing,
    FileTooLarge,
    InvalidPath,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.integrations.operations import Operations
from sandbox_sdk.protocol.models import USER

NOTE = f"/home/{USER}/.agent-sandbox-graph.json"
MAX_NOTE_BYTES = 4096
_BEGINNING = {"langgraph": "before the first tool"}
"""Marks the sandbox checkpoint that a thread goes back to from before its first tool."""


@dataclass(frozen=True)
class Note:
    """What a box says about its files."""

    files: str
    """The sandbox checkpoint that they began as, or why there is none."""
    changed_at: str | None = None
    """The graph's checkpoint at which tools have changed them since."""


async def take_beginning(box: Operations) -> str:
    await box.sandbox.create_session()
    taken = await box.sandbox.checkpoint("before the first tool", metadata=_BEGINNING)
    return taken.checkpoint_id


async def find_beginning(box: Operations) -> str:
    for each in await box.sandbox.checkpoints(limit=1000):
        if each.metadata == _BEGINNING:
            return each.checkpoint_id
    raise CheckpointNotFound(
        "this thread has no checkpoint of before its first tool; a copy of a thread has none"
    )


async def read_note(box: Operations) -> Note | None:
    """None if there is no box or no such file, or the agent has overwritten it."""
    try:
        said = json.loads(await box.content(NOTE, max_bytes=MAX_NOTE_BYTES))
        return Note(str(said["files"]), said["changed_at"])
    except (FileMissing, FileTooLarge, InvalidPath, SessionNotFound, SessionLost):
        return None
    except (ValueError, KeyError, TypeError):
        return None


async def write_note(box: Operations, note: Note) -> None:
    await box.sandbox.write_text(NOTE, json.dumps(asdict(note)))
