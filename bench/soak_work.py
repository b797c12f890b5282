"""What the callers of a soak do: everything that can be asked of a sandbox, in any order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from sandbox_sdk import AsyncSandboxClient
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.sandboxes import Sandboxes

KIB = 1 << 10
LATE = {"session_not_found", "session_lost"}
"""What a call may be told because another one has ended the session."""


class WrongAnswer(Exception):
    """A sandbox has answered, and not what it was asked."""


class Tally:
    """What has happened, of all callers together."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """By code; what has none, by its class, which should not happen."""
        self.wrong: list[str] = []


class Caller:
    """One thread: does one thing after the other until it is told to stop."""

    def __init__(self, number: int, sandboxes: Sandboxes, tally: Tally) -> None:
        self.thread_id = f"soak-{number}"
        self._sandbox = AsyncSandboxClient(self.thread_id, backend=sandboxes)
        self._tally = tally
        self._random = random.Random(number)
        self._name = f"me-{number}"

    async def begin(self) -> None:
        await self._sandbox.execute(f"me={self._name}", timeout=120)

    async def work(self, stop: asyncio.Event) -> None:
        names, weights = zip(*WORK.items(), strict=True)
        while not stop.is_set():
            (what,) = self._random.choices(names, [weight for weight, _ in weights])
            await self._one(what.__name__, what)

    async def end(self) -> None:
        with contextlib.suppress(SandboxError):
            await self._sandbox.cleanup()
        await self._sandbox.close()

    async def _one(self, name: str, what: Callable[[Caller], Awaitable[None]]) -> None:
        expected = LATE | WORK[what][1]
        try:
            await what(self)
        except SandboxError as exc:
            unknown = type(exc) is SandboxError
            code = f"{exc.code}{'?' if unknown else ''}"
            self._tally.errors[code if code in expected else f"{code} in {name}"] += 1
        except WrongAnswer as exc:
            self._tally.wrong.append(f"{name}: {exc}")
        except Exception as exc:
            self._tally.errors[f"{type(exc).__name__} in {name}"] += 1
        self._tally.done[name] += 1

    def _expect(self, said: object, *wanted: object) -> None:
        if said not in wanted:
            raise WrongAnswer(f"{self.thread_id}: {said!r:.80} instead of {wanted!r:.80}")

    # What there is to do

    async def command(self) -> None:
        """Its state is its own: a new life of the thread has none, and never somebody else's."""
        result = await self._sandbox.execute(f"echo $me; me={self._name}; cd /tmp", timeout=60)
        self._expect(result.output, f"{self._name}\n", "\n")

    async def output(self) -> None:
        size = self._random.randrange(300 * KIB)
        result = await self._sandbox.execute(f"head -c {size} /dev/zero | tr '\\0' x", timeout=60)
        self._expect(len(result.output), size)

    async def failure(self) -> None:
        result = await self._sandbox.execute("nosuch; (exit 7)", timeout=60)
        self._expect(result.exit_code, 7)

    async def timeout(self) -> None:
        result = await self._sandbox.execute("sleep 600 & sleep 600", timeout=0.5)
        self._expect(result.timed_out, True)

    async def files(self) -> None:
        data = self._random.randbytes(self._random.randrange(1, 256 * KIB))
        path = f"/workspace/f{self._random.randrange(5)}"
        await self._sandbox.upload_bytes(data, path)
        self._expect(await self._sandbox.download_bytes(path), data)

    async def listing(self) -> None:
        await self._sandbox.execute("mkdir -p d && cd d && touch {1..50}", timeout=60)
        await self._sandbox.list_files("/tmp", limit=10)
        await self._sandbox.list_files("/workspace", recursive=True)

    async def folder(self) -> None:
        await self._sandbox.download_bytes("/workspace")

    async def missing(self) -> None:
        await self._sandbox.download_bytes(self._random.choice(("nothing-here", "/etc/shadow")))

    async def stream(self) -> None:
        text = ""
        async for event in self._sandbox.stream("for i in 1 2 3; do echo $i; sleep 0.05; done"):
            text += getattr(event, "data", "")
        self._expect(text, "1\n2\n3\n")

    async def left_stream(self) -> None:
        async for event in self._sandbox.stream("yes | head -c 500000; echo end"):
            if getattr(event, "data", ""):
                break

    async def cancel(self) -> None:
        """The caller goes away; the command is ended by its timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await self._sandbox.execute("sleep 30", timeout=2)

    async def kill(self) -> None:
        process = await self._sandbox.start("sleep 600 & sleep 600")
        await process.kill()
        self._expect((await process.wait()).signal, "KILL")

    async def rejected(self) -> None:
        await self._sandbox.execute("reboot")

    async def hard_to_judge(self) -> None:
        number = self._random.randrange(1000)
        await self._sandbox.check(f"a{number};" * 2000)

    async def look(self) -> None:
        await self._sandbox.session()
        await self._sandbox.commands()

    async def cleanup(self) -> None:
        await self._sandbox.cleanup()
        await self.begin()


NOTHING: frozenset[str] = frozenset()
WORK: dict[Callable[[Caller], Awaitable[None]], tuple[int, frozenset[str]]] = {
    Caller.command: (30, NOTHING),
    Caller.output: (6, NOTHING),
    Caller.failure: (5, NOTHING),
    Caller.timeout: (3, NOTHING),
    Caller.files: (10, NOTHING),
    Caller.listing: (5, NOTHING),
    Caller.folder: (2, NOTHING),
    Caller.missing: (3, frozenset({errors.FileMissing.code, errors.InvalidPath.code})),
    Caller.stream: (6, NOTHING),
    Caller.left_stream: (3, NOTHING),
    Caller.cancel: (5, NOTHING),
    Caller.kill: (5, NOTHING),
    Caller.rejected: (3, frozenset({errors.CommandRejected.code})),
    Caller.hard_to_judge: (1, NOTHING),
    Caller.look: (5, NOTHING),
    Caller.cleanup: (2, NOTHING),
}
"""How often each is chosen, and which errors it is there to get."""
