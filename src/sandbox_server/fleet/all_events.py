"""What happens at all workers of a fleet, in one answer.

A position is that of every worker: `worker=position`, with semicolons between them. Of a worker
that is not in it, all is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import Happening, HappeningList, HappeningsRequest

Ask = Callable[[str, HappeningsRequest], Coroutine[Any, Any, HappeningList | None]]
"""Asks the worker of this name; None if it does not answer."""
_AT_ONCE_S = 0.05
"""After the first worker has told something, for others that have something too."""


async def since(
    workers: list[str], silent: list[str], ask: Ask, request: HappeningsRequest
) -> HappeningList:
    """What has happened at these workers since a position; returns when one has something. silent:
    those that are away. Raises InvalidRequest for a wrong position."""
    before = _parsed(request.after)
    names = [*workers, *(name for name in before if name not in workers)] if before else workers
    tasks = {
        name: asyncio.create_task(
            ask(name, request.model_copy(update={"after": _of(before, name)}))
        )
        for name in workers
    }
    try:
        await _one_has_something(list(tasks.values()), request.wait)
        answers = {name: _answer(task) for name, task in tasks.items()}
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return _merged(names, answers, before, silent, request)


async def _one_has_something(
    tasks: list[asyncio.Task[HappeningList | None]], wait_s: float
) -> None:
    pending = set(tasks)
    deadline = asyncio.get_running_loop().time() + wait_s + 5.0
    while pending:
        left = deadline - asyncio.get_running_loop().time()
        done, pending = await asyncio.wait(
            pending, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            return
        if any((found := _answer(task)) and found.events for task in done):
            if pending:
                await asyncio.wait(pending, timeout=_AT_ONCE_S)
            return


def _answer(task: asyncio.Task[HappeningList | None]) -> HappeningList | None:
    """None while there is none. Raises InvalidRequest."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, InvalidRequest):
        raise error
    return None


def _merged(
    names: list[str],
    answers: Mapping[str, HappeningList | None],
    before: Mapping[str, str] | None,
    silent: list[str],
    request: HappeningsRequest,
) -> HappeningList:
    """Each event with the position of all workers after it."""
    at = {name: position for name in names if (position := _of(before, name)) is not None}
    every = [
        (event.at, name, event)
        for name, found in answers.items()
        if found is not None
        for event in found.events
    ]
    kept = sorted(every, key=lambda each: each[0])[: request.limit]
    events: list[Happening] = []
    for _, name, event in kept:
        at[name] = event.id
        events.append(event.model_copy(update={"id": _told(at)}))
    for name, found in answers.items():
        # What did not fit is asked for again.
        if found is not None and sum(each[1] == name for each in kept) == len(found.events):
            at[name] = found.next
    lost = sorted({*silent, *(name for name, found in answers.items() if found is None)})
    return HappeningList(
        events=events, next=_told(at), unreachable=lost if request.wait == 0 else silent
    )


def _parsed(after: str | None) -> dict[str, str] | None:
    if after is None:
        return None
    found: dict[str, str] = {}
    for part in after.split(";"):
        name, equals, position = part.partition("=")
        if part and not (name and equals):
            raise InvalidRequest("after: not a position; use `next` of an answer, or nothing")
        if part:
            found[name] = position
    return found


def _of(before: Mapping[str, str] | None, name: str) -> str | None:
    return None if before is None else before.get(name, "")


def _told(at: Mapping[str, str]) -> str:
    return ";".join(f"{name}={position}" for name, position in sorted(at.items()))
