"""`sandbox top`: the live sessions, with what they use, as it changes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import duration_option
from sandbox_sdk.cli.sessions import span
from sandbox_sdk.protocol.errors import SandboxError, size_text
from sandbox_sdk.protocol.models import SessionInfo, SessionList, SessionSummary, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes

if TYPE_CHECKING:
    from rich.console import RenderableType

_AT_ONCE = 8
_MARGIN = 4
"""Lines of a screen that are not sessions."""


async def top(
    *,
    every: Annotated[float, duration_option("How often to look: 2s, or seconds.")] = 2.0,
    sort: Annotated[str, typer.Option(help="By cpu, memory, idle or thread.")] = "cpu",
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
    caller: Caller,
) -> None:
    """Watch the live sessions: state, idle time, CPU, memory and disk.

    Boxes are asked only for what is on the screen, and asking does not count as use. Ctrl-C leaves.
    Without a terminal, or with --once, it looks once; with --json a line for every look.
    """
    if sort not in _ORDERS:
        raise typer.BadParameter(f"{sort!r} is none of {', '.join(_ORDERS)}")
    watch = Watch(caller, sort=sort)
    screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if screen and not once and not caller.json:
        await watch.live(every)
    else:
        await watch.tell(every, once=once or not caller.json)


@dataclass
class _Seen:
    """One session, as it was seen last."""

    info: SessionInfo
    at: float
    cores: float | None
    """Since the look before; None at the first."""


@dataclass
class Watch:
    caller: Caller
    sort: str
    _seen: dict[str, _Seen] = field(default_factory=dict)

    async def live(self, every_s: float) -> None:
        from rich.live import Live

        async with self.caller.sandboxes() as sandboxes:
            with Live(screen=True, auto_refresh=False) as screen:
                while True:
                    screen.update(await self._screen(sandboxes), refresh=True)
                    await asyncio.sleep(every_s)

    async def tell(self, every_s: float, *, once: bool) -> None:
        async with self.caller.sandboxes() as sandboxes:
            while True:
                await self.look(sandboxes)
                document = {"sessions": [each.info.to_dict() for each in self.shown()]}
                self.caller.say_table(document, _HEADS, map(_row, self.shown()))
                if once:
                    return
                await asyncio.sleep(every_s)

    async def look(self, sandboxes: Sandboxes) -> SessionList:
        """Ask for all sessions, and for the usage of those on the screen."""
        found = await sandboxes.sessions()
        by_id = {each.session_id: each for each in found.sessions}
        self._seen = {name: seen for name, seen in self._seen.items() if name in by_id}
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(session: SessionSummary) -> None:
            async with slots:
                try:
                    info = await sandboxes.session(Target(session_id=session.session_id))
                except SandboxError:  # It has ended meanwhile.
                    self._seen.pop(session.session_id, None)
                    return
                self._note(info)

        await asyncio.gather(*map(ask, self._wanted(found.sessions)))
        return found

    def _wanted(self, sessions: list[SessionSummary]) -> list[SessionSummary]:
        """Those that may be on the screen: used last, so most likely to use something now."""
        first = sorted(sessions, key=lambda s: (s.state != "busy", s.idle_s))
        return first[: _rows()]

    def _note(self, info: SessionInfo) -> None:
        now, before = time.monotonic(), self._seen.get(info.session_id)
        cores = None
        if before is not None and now > before.at:
            used_s = info.usage.cpu_s - before.info.usage.cpu_s
            cores = max(used_s, 0.0) / (now - before.at)
        self._seen[info.session_id] = _Seen(info, now, cores)

    def shown(self) -> list[_Seen]:
        return sorted(self._seen.values(), key=_ORDERS[self.sort])

    async def _screen(self, sandboxes: Sandboxes) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        try:
            found, why = await self.look(sandboxes), ""
            busy = sum(1 for each in found.sessions if each.state == "busy")
            head = f"{len(found.sessions)} sessions, {busy} busy"
            if found.unreachable:
                head += f"; no answer from {', '.join(found.unreachable)}"
        except SandboxError as exc:
            head, why = "no answer", exc.message
        table = Table(box=None, pad_edge=False)
        for name in _HEADS:
            table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True)
        for seen in self.shown()[: _rows()]:
            table.add_row(*_row(seen), style="" if seen.info.state == "busy" else "dim")
        return Group(Text(f"{head}   {why}"), Text(), table)


def _rows() -> int:
    """How many sessions fit on the screen."""
    return max(shutil.get_terminal_size().lines - _MARGIN, 1)


_ORDERS: dict[str, Callable[[_Seen], Any]] = {
    "cpu": lambda seen: (-(seen.cores or 0.0), seen.info.idle_s),
    "memory": lambda seen: (-(seen.info.usage.memory_bytes or 0), seen.info.idle_s),
    "idle": lambda seen: seen.info.idle_s,
    "thread": lambda seen: seen.info.thread_id,
}
_HEADS = ("THREAD", "STATE", "IDLE", "CPU", "MEMORY", "DISK", "PIDS", "COMMANDS", "RUNTIME")
_NUMBERS = frozenset({"IDLE", "CPU", "MEMORY", "DISK", "PIDS", "COMMANDS"})


def _row(seen: _Seen) -> tuple[str, ...]:
    info, usage = seen.info, seen.info.usage
    return (
        escaped(info.thread_id),
        info.state,
        span(info.idle_s),
        "?" if seen.cores is None else f"{100 * seen.cores:.0f}%",
        _size(usage.memory_bytes),
        _size(usage.disk_bytes),
        str(usage.pids),
        str(info.commands),
        info.runtime,
    )


def _size(count: int | None) -> str:
    return "?" if count is None else size_text(count)
