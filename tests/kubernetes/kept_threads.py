"""Threads that must outlive faults: what they have, who calls them meanwhile, and what is told of
those whose pod is gone."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    ExecuteRequest,
    ExecuteResult,
    SessionInfo,
    Target,
)
from tests.kubernetes.conftest import Kubectl

RECOVERY_S = 150.0
"""How long after a fault everything may take to be as it was, on a busy machine."""
_PAUSE_S = 0.3
_T = TypeVar("_T")


async def patiently(call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a call for as long as it is told to try again."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                return await call()
            except errors.Unavailable:
                await asyncio.sleep(_PAUSE_S)


@dataclass
class Seen:
    """What somebody who calls again and again saw of a fault."""

    calls: int = 0
    codes: set[str] = field(default_factory=set)
    longest_s: float = 0.0
    """Between the begin of one call and the end of the next that succeeded."""

    def add(self, other: "Seen") -> None:
        self.calls += other.calls
        self.codes |= other.codes
        self.longest_s = max(self.longest_s, other.longest_s)

    def __str__(self) -> str:
        codes = ", ".join(sorted(self.codes)) or "no error"
        return f"{self.calls} calls, at most {self.longest_s:.1f} s without an answer: {codes}"


class KeptThread:
    """One thread with files, state of its shell and a command that runs on."""

    def __init__(self, client: RemoteBackend, name: str) -> None:
        self.name = name
        self._client = client
        self._turn = 0
        self._background = ""
        self.session_id = ""

    def __repr__(self) -> str:
        return f"<KeptThread {self.name} {self.session_id} turn {self._turn}>"

    async def run(self, command: str, **options: Any) -> ExecuteResult:
        """One call, not repeated."""
        request = {"thread_id": self.name, "command": command, **options}
        return await self._client.execute(ExecuteRequest.model_validate(request))

    async def session(self) -> SessionInfo:
        return await patiently(lambda: self._client.session(Target(thread_id=self.name)))

    async def begin(self) -> ExecuteResult:
        self._turn = 0
        first = await patiently(lambda: self.run("n=0; echo 0 > n"))
        key = f"{self.name} {time.monotonic()}"
        waits = "echo before; until [ -e stop ]; do sleep 0.5; done; echo after"
        begun = await patiently(lambda: self.run(waits, background=True, idempotency_key=key))
        self._background = begun.command_id
        self.session_id = (await self.session()).session_id
        return first

    async def check(self) -> None:
        """Nothing of it is lost; then change it."""
        before, self._turn = self._turn, self._turn + 1
        found = await patiently(lambda: self.run("echo $n; cat n"))
        assert (found.output, found.session_state) == (f"{before}\n{before}\n", "live"), (
            self,
            found,
        )
        await patiently(lambda: self.run(f"n={self._turn}; echo $n > n"))
        assert (await self.session()).session_id == self.session_id, self
        running = await self._result()
        assert (running.output, running.exit_code) == ("before\n", None), (self, running)

    async def end(self) -> None:
        await patiently(lambda: self.run("touch stop"))
        async with asyncio.timeout(RECOVERY_S):
            while (ended := await self._result()).exit_code is None:
                await asyncio.sleep(_PAUSE_S)
        assert ended.output == "before\nafter\n", self
        await patiently(lambda: self._client.cleanup(Target(thread_id=self.name)))

    async def _result(self) -> ExecuteResult:
        target = Target(thread_id=self.name)
        return await patiently(lambda: self._client.result(target, self._background))

    async def lost(self) -> None:
        """It is told to those who ask for the session, and once to those who ask for the thread,
        which begins anew."""
        async with asyncio.timeout(RECOVERY_S):
            with suppress(errors.SessionLost):
                while True:
                    with suppress(errors.Unavailable):
                        await self._client.execute(
                            ExecuteRequest(session_id=self.session_id, command="true")
                        )
                    await asyncio.sleep(_PAUSE_S)
        before = self.session_id
        first = await self.begin()
        assert first.session_state == "recreated", self
        assert self.session_id != before, self

    @asynccontextmanager
    async def called(self, seen: Seen) -> AsyncIterator[None]:
        """Somebody calls for its session all the time."""
        calling = asyncio.create_task(self._call(self.session_id, seen))
        try:
            yield
        finally:
            calling.cancel()
            await asyncio.wait([calling])
        if not calling.cancelled() and (exc := calling.exception()) is not None:
            raise exc

    async def _call(self, session_id: str, seen: Seen) -> None:
        # No command: one that began before another and ends after it would put its variables back.
        target = Target(session_id=session_id)
        since = time.monotonic()
        try:
            while True:
                try:
                    seen.calls += 1
                    await self._client.stat(target, "n")
                except errors.Unavailable as exc:
                    seen.codes.add(exc.code)
                else:
                    seen.longest_s = max(seen.longest_s, time.monotonic() - since)
                    since = time.monotonic() + _PAUSE_S
                await asyncio.sleep(_PAUSE_S)
        except errors.SessionLost as exc:
            seen.codes.add(exc.code)
        finally:
            seen.longest_s = max(seen.longest_s, time.monotonic() - since)


async def pods_are(kubectl: Kubectl, threads: list[KeptThread]) -> None:
    """Wait until every session has its pod, and there is no other."""
    found: list[str] = []
    try:
        async with asyncio.timeout(RECOVERY_S):
            while True:
                pods = await asyncio.to_thread(kubectl.pods)
                found = sorted(session_of(pod) for pod in pods)
                if found == sorted(thread.session_id for thread in threads):
                    return
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        raise AssertionError(f"pods of sessions {found} instead of {threads}") from None


def session_of(pod: dict[str, Any]) -> str:
    """The session whose pod it is, by what its owner has written on it."""
    note = (pod["metadata"].get("annotations") or {}).get("sandbox/entry", "")
    state = (json.loads(note) if note else {}).get("state") or {}
    return str(state.get("session_id", f"nobody's {pod['metadata']['name']}"))
