"""Callers who write down every answer, and the rules that no sequence of answers may break."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from sandbox_sdk.protocol.errors import SandboxError, SessionLost
from sandbox_sdk.protocol.models import ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes

PAUSE_S = 0.05 if "CHAOS_ROUNDS" in os.environ else 0.3
"""Between two calls of a thread: `make chaos` is for load, other tests run beside this one."""
EXPLAINED = {"session_lost", "runtime_unavailable", "capacity"}
# Who I am, how often I have been written to, what was written twice, which files are here.
ASK = """
[ -e .box ] || head -c 8 /dev/urandom | od -An -tx1 | tr -d ' \\n' > .box
echo {op} >> .log
cat .box; echo; wc -l < .log; sort .log | uniq -d | wc -l; ls up 2>/dev/null | tr '\\n' ' '
"""


@dataclass(frozen=True)
class Answer:
    """What came of one call."""

    thread: str
    op: str
    at: float
    took_s: float
    error: str | None = None
    generation: int = 0
    session: str = ""
    box: str = ""
    written: int = 0
    doubled: int = 0
    files: frozenset[str] = frozenset()
    uploaded: str | None = None
    """The file an upload has acknowledged before this answer, in the same turn."""


@dataclass
class Witness:
    """One caller a thread. `answers` is the log that is judged in the end."""

    sandboxes: Sandboxes
    threads: list[str]
    answers: list[Answer] = field(default_factory=list)
    _ops: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def watching(self):
        """Load for as long as this is open."""
        callers = [asyncio.create_task(self._call_for_ever(thread)) for thread in self.threads]
        try:
            yield self
        finally:
            self._stop.set()
            await asyncio.gather(*callers)

    async def _call_for_ever(self, thread: str) -> None:
        while not self._stop.is_set():
            self.answers.append(await self._turn(thread))
            await asyncio.sleep(PAUSE_S)

    async def _turn(self, thread: str) -> Answer:
        number = next(self._ops)
        op, began = f"op{number}", time.monotonic()
        try:
            uploaded = await self._upload(thread, op) if number % 4 == 0 else None
            result = await self.sandboxes.execute(
                ExecuteRequest(thread_id=thread, command=ASK.format(op=op), idempotency_key=op)
            )
            box, written, doubled, *files = result.output.split("\n")
        except SandboxError as exc:
            now = time.monotonic()
            return Answer(thread, op, now, now - began, error=exc.code)
        now = time.monotonic()
        return Answer(
            thread, op, now, now - began, None, result.generation, result.session_id, box,
            int(written), int(doubled), frozenset(" ".join(files).split()), uploaded,
        )  # fmt: skip

    async def _upload(self, thread: str, op: str) -> str:
        body = op.encode() * 1000

        async def chunks():
            yield body

        stored = await self.sandboxes.upload_file(Target(thread_id=thread), f"up/{op}", chunks())
        assert stored.sha256 == hashlib.sha256(body).hexdigest()
        return op

    def judged(self) -> list[str]:
        """Every breach of the contract, as a line."""
        breaches = []
        for thread in self.threads:
            mine = [answer for answer in self.answers if answer.thread == thread]
            breaches += [f"{thread}: {line}" for line in _breaches(mine)]
        return breaches

    def figures(self) -> str:
        good = [answer for answer in self.answers if answer.error is None]
        errors = Counter(answer.error for answer in self.answers if answer.error)
        waits = sorted(answer.took_s for answer in good if answer.took_s > 1.0) or [0.0]
        lives = len({(answer.thread, answer.generation) for answer in good})
        return (
            f"{len(good)} answers in {lives} lives of {len(self.threads)} threads,"
            f" errors {dict(errors)}, {len(waits)} calls waited out a failure,"
            f" p95 {waits[int(len(waits) * 0.95) - 1]:.1f} s, longest {waits[-1]:.1f} s"
        )


def _breaches(answers: list[Answer]) -> Iterator[str]:
    boxes: dict[int, set[str]] = defaultdict(set)
    sessions: dict[int, set[str]] = defaultdict(set)
    acknowledged: dict[int, set[str]] = defaultdict(set)
    before: Answer | None = None
    doubtful = 0
    for answer in answers:
        if answer.error is not None:
            if answer.error not in EXPLAINED:
                yield f"{answer.op}: unexplained error {answer.error}"
            doubtful += 1
            continue
        boxes[answer.generation].add(answer.box)
        sessions[answer.generation].add(answer.session)
        if answer.doubled:
            yield f"{answer.op}: {answer.doubled} commands ran twice"
        if before and answer.generation < before.generation:
            yield f"{answer.op}: generation {answer.generation} after {before.generation}"
        same_life = before is not None and answer.generation == before.generation
        least = before.written + 1 if same_life and before else 1
        if not least <= answer.written <= least + doubtful:
            yield f"{answer.op}: {answer.written} commands on record, not {least}"
        if missing := acknowledged[answer.generation] - answer.files:
            yield f"{answer.op}: files gone: {sorted(missing)}"
        if answer.uploaded and answer.uploaded in answer.files:
            acknowledged[answer.generation].add(answer.uploaded)
        elif answer.uploaded and same_life:
            yield f"{answer.op}: its upload is not there"
        before, doubtful = answer, 0
    for what, found in (("boxes", boxes), ("sessions", sessions)):
        for generation, names in found.items():
            if len(names) > 1:
                yield f"generation {generation} had {len(names)} {what}"


__all__ = ["Answer", "SessionLost", "Witness"]
