"""Killing a command: everything it started, however it hides, and the proof that nothing is left.

Where a nursery is a subreaper and alive, it knows: it has no child left exactly when no process of
its command is left, since whatever loses its parent becomes a child of the nursery before the
parent is gone. Elsewhere (gVisor has no subreapers; a nursery can be killed) orphans become the
warden's own children, and are told apart by what they inherited.
"""

from typing import Callable, Collection, List

from . import processes
from .loop import Loop, Timer
from .processes import Killer, Process, Table

_FIRST_S = 0.002
_LONGEST_S = 0.1
_FREEZE_AFTER = 5
_PATIENCE_S = 2.0
"""For a nursery to say that nothing is left. Then it is killed as well, and as much time again is
given to what it leaves."""


class Trace:
    """What the processes of one command have inherited.

    session: the shell's, which only those have left that began one of their own.
    marker: what is in the environment of all that was started by exec; known says whether one
    belongs to some command.
    """

    def __init__(
        self, session: int, marker: bytes, age_s: float, known: Callable[[bytes], bool]
    ) -> None:
        self._session = session
        self._marker = marker
        self._since = processes.ticks(age_s)
        self._known = known

    def owns(self, orphan: Process, others: Collection[int]) -> bool:
        """Whether a child of the warden is of this command. others: sessions of other shells.

        One that says nothing (emptied environment, session of its own) is this command's if it is
        younger: rather one too many than one that escapes.
        """
        if orphan.session == self._session:
            return True
        if orphan.session in others:
            return False
        name = self._marker.partition(b"=")[0] + b"="
        for part in processes.environment(orphan.pid).split(b"\0"):
            if part == self._marker:
                return True
            if part.startswith(name) and self._known(part[len(name) :]):
                return False
        return orphan.started >= self._since


class Killing:
    """Kills until nothing is left, then calls on_gone.

    find: the command's processes in a table. provable: whether there is a nursery that will say so
    itself; otherwise a sweep that finds nothing, and cannot have missed anything, has to do.
    impatient and give_up are called when that has taken _PATIENCE_S, and twice as long.
    """

    def __init__(
        self,
        loop: Loop,
        find: processes.Find,
        *,
        provable: Callable[[], bool],
        impatient: Callable[[], None],
        give_up: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.gone = False
        self._loop = loop
        self._killer = Killer(find)
        self._provable = provable
        self._on_gone = on_gone
        self._tries = 0
        self._next: List[Timer] = []
        self._limits = [loop.after(_PATIENCE_S, impatient), loop.after(2 * _PATIENCE_S, give_up)]

    def push(self, *, last: bool) -> None:
        """Kill what there is. last: the shell is over, so that nothing new comes from there."""
        if self.gone:
            return
        self._cancel()
        self._tries += 1
        delay_s = min(_FIRST_S * 2 ** (self._tries - 1), _LONGEST_S)
        self._next = [self._loop.after(delay_s, lambda: self.push(last=last))]
        sweep = self._killer.sweep()
        # Those that were found are dying. What is there and not found is outrunning us.
        if self._tries > _FREEZE_AFTER and not sweep.found:
            sweep = self._killer.sweep(frozen=True)
        if last and not self._provable() and sweep.sure and not sweep.found:
            self.done()

    def done(self) -> None:
        """Nothing is left."""
        if not self.gone:
            self.gone = True
            self._cancel()
            for timer in self._limits:
                timer.cancel()
            self._on_gone()

    def _cancel(self) -> None:
        for timer in self._next:
            timer.cancel()
        self._next = []


def orphans(table: Table, keep: Collection[int]) -> List[Process]:
    """The warden's children but for those to keep: they have lost their own parents."""
    return [p for p in table.values() if p.alive and p.parent == 1 and p.pid not in keep]
