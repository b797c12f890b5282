"""Killing a command: everything it started, and the proof that nothing is left.

A live nursery that is a subreaper knows: it has no children exactly when no process of its command
is left, since an orphan becomes its child before the parent is gone. Otherwise (gVisor has no
subreapers; a nursery can be killed) orphans become the warden's own children, and are identified by
what they inherited.
"""

from typing import Callable, Collection, List

from . import processes
from .loop import Loop, Timer
from .processes import Killer, Process, Table

_FIRST_S = 0.002
_LONGEST_S = 0.1
_FREEZE_AFTER = 5
_PATIENCE_S = 2.0
"""How long a nursery may take to report that nothing is left. Then it is killed as well, and its
orphans get the same time again."""


class Trace:
    """What identifies the processes of one command.

    shell, session: the shell's. A process leaves its session only with setsid; on gVisor, commands
    that followed each other may share one.
    marker: inherited in the environment; known tells whether a marker belongs to any command.
    """

    def __init__(
        self, shell: int, session: int, marker: bytes, age_s: float, known: Callable[[bytes], bool]
    ) -> None:
        self._shell = shell
        self._session = session
        self._marker = marker
        self._since = processes.ticks(age_s)
        self._known = known

    def owns(self, orphan: Process, others: Collection[int]) -> bool:
        """Whether a child of the warden belongs to this command. others: sessions of other shells.

        One without a trace (empty environment, own session) counts as this command's if it is
        younger: better to kill one too many than to let one escape.
        """
        if orphan.pid == self._shell:
            return True
        if orphan.session == self._session and orphan.started >= self._since:
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

    find: picks the command's processes from a table. provable: whether a nursery will report the
    end; otherwise a sweep that finds nothing and cannot have missed anything is the proof.
    impatient and give_up are called after _PATIENCE_S and after twice that.
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
        """Kill what is there. last: the shell has ended, so it starts nothing new."""
        if self.gone:
            return
        self._cancel()
        self._tries += 1
        delay_s = min(_FIRST_S * 2 ** (self._tries - 1), _LONGEST_S)
        self._next = [self._loop.after(delay_s, lambda: self.push(last=last))]
        sweep = self._killer.sweep()
        # What was found is dying. What is left but never found forks faster than we kill.
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
    """The warden's children except those in `keep`: processes that lost their parents."""
    return [p for p in table.values() if p.alive and p.parent == 1 and p.pid not in keep]
