"""`sandbox checkpoint`, `checkpoints`, `rewind` and `fork`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import size_text
from sandbox_sdk.protocol.models import (
    Checkpoint,
    CheckpointRequest,
    ForkRequest,
    RestoreRequest,
    checked,
)

Thread = Annotated[str, typer.Argument(metavar="T", help="A thread_id.")]
_HEADS = ("CHECKPOINT", "THREAD", "NAME", "TAKEN", "FILES", "SIZE", "ADDED")


async def checkpoint(
    thread: Thread,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="For people; need not be unique.")
    ] = None,
    *,
    tmp: Annotated[bool, typer.Option(help="Whether /tmp is in it.")] = True,
    caller: Caller,
) -> None:
    """Copy the files and the shell state of a thread, to go back to or to fork.

    What runs is paused for the moment and goes on. Prints the id of the checkpoint.
    """
    request = checked(CheckpointRequest, thread_id=thread, name=name, tmp=tmp)
    async with caller.sandboxes() as sandboxes:
        made = await sandboxes.checkpoint(request)
    caller.say(made, made.checkpoint_id)
    if caller.json:
        return
    if made.running:
        running = ", ".join(escaped(each[:60]) for each in made.running[:5])
        caller.complain(f"not in it, because they are processes: {running}")
    for left in made.left_out[:5]:
        caller.complain(f"not in it: {escaped(left.path)}: {escaped(left.why)}")


async def checkpoints(
    thread: Annotated[
        str | None, typer.Argument(metavar="[T]", help="A thread_id; without one, all threads.")
    ] = None,
    *,
    tree: Annotated[bool, typer.Option("--tree", help="As a tree: which came from which.")] = False,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="CHECKPOINT", help="Delete this one.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most checkpoints.")] = 100,
    caller: Caller,
) -> None:
    """List the checkpoints of a thread, or of all, newest first; or delete one."""
    if delete is not None and (tree or thread is not None):
        raise typer.BadParameter("--delete takes one checkpoint, and no thread or --tree")
    async with caller.sandboxes() as sandboxes:
        if delete is not None:
            caller.say(await sandboxes.delete_checkpoint(delete))
            return
        found = await sandboxes.checkpoints(thread_id=thread, limit=limit)
    if tree:
        caller.say(found, "\n".join(_tree(found.checkpoints)))
    else:
        caller.say_table(found, _HEADS, map(_row, found.checkpoints))
    caller.complain_of_cut(limit, truncated=found.truncated)
    caller.complain_of_missing(found.unreachable, "the checkpoints there are not in this list")


def _row(each: Checkpoint) -> tuple[str, ...]:
    return (
        each.checkpoint_id,
        each.thread_id,
        each.name or ("(automatic)" if each.automatic else ""),
        f"{each.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
        str(each.files),
        size_text(each.size),
        size_text(each.added),
    )


def _tree(every: Sequence[Checkpoint]) -> Iterator[str]:
    """Oldest first, what came from a checkpoint below it."""
    known = {each.checkpoint_id for each in every}
    below: dict[str | None, list[Checkpoint]] = {}
    for each in reversed(every):
        parent = each.parent if each.parent in known else None
        below.setdefault(parent, []).append(each)

    def lines(parent: str | None, indent: str) -> Iterator[str]:
        of = below.get(parent, [])
        for each in of:
            last = each is of[-1]
            branch = "" if parent is None else "└─ " if last else "├─ "
            yield f"{indent}{branch}{_line(each)}"
            inner = "" if parent is None else "   " if last else "│  "
            yield from lines(each.checkpoint_id, indent + inner)

    return lines(None, "")


def _line(each: Checkpoint) -> str:
    name = f" {escaped(each.name)}" if each.name else " (automatic)" if each.automatic else ""
    when = f"{each.created_at.astimezone():%m-%d %H:%M:%S}"
    return f"{each.checkpoint_id} {each.thread_id}{name}, {when}, {size_text(each.size)}"


async def rewind(
    thread: Thread,
    checkpoint_id: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="To where.")],
    *,
    caller: Caller,
) -> None:
    """Take a thread back to a checkpoint: its files and its shell are as they were then.

    What runs in it ends. If it fails, nothing has changed.
    """
    request = checked(RestoreRequest, thread_id=thread, checkpoint_id=checkpoint_id)
    async with caller.sandboxes() as sandboxes:
        caller.say(await sandboxes.restore(request))


async def fork(
    source: Annotated[
        str, typer.Argument(metavar="T", help="A thread_id, or the id of a checkpoint.")
    ],
    into: Annotated[list[str], typer.Argument(metavar="NEW...", help="The thread_ids to make.")],
    *,
    caller: Caller,
) -> None:
    """Begin new threads from a thread as it is now, or from a checkpoint."""
    begins = "checkpoint_id" if source.startswith("cp-") else "thread_id"
    request = checked(ForkRequest, **{begins: source}, into=into)
    async with caller.sandboxes() as sandboxes:
        result = await sandboxes.fork(request)
    caller.say(result, "\n".join(session.thread_id for session in result.sessions))
