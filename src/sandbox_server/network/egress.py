"""Egress of one session: the connections that its box makes to the proxy, served and counted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError, SessionLost
from sandbox_server.network import socks
from sandbox_server.network.dialing import Dialer
from sandbox_server.network.http_proxy import HttpProxy
from sandbox_server.network.outbound import EgressLimits, Meter, MeteredChannel, Note, Outbound
from sandbox_server.network.rules import Refused, RuleSet, Verdict
from sandbox_server.network.socks import SocksProxy
from sandbox_server.runtime.agent import BoxAgent, Fenced
from sandbox_server.runtime.box_network import PROXY_PORT
from sandbox_server.tasks import stop

log = structlog.get_logger()

AHEAD = 4
"""Connections that are waited for at a time."""
_FIRST_S = 60.0
"""How long a connection may be silent at its beginning."""
_LISTENING_S = 5.0
_AGAIN_S = (0.1, 5.0)
_STEADY_S = 30.0


@dataclass(frozen=True)
class Subject:
    """Whose connections they are."""

    tenant: str
    thread_id: str
    session_id: str


Report = Callable[[Subject, Note], None]


class Egress:
    """Runs from start() to close()."""

    def __init__(
        self,
        agent: BoxAgent,
        rules: RuleSet,
        subject: Subject,
        *,
        limits: EgressLimits,
        dialer: Dialer,
        report: Report,
        meet: Callable[[], Awaitable[None]],
        used_today: int = 0,
        spent: Callable[[], str] = str,
    ) -> None:
        """meet: returns once the box is known to be that of the session. used_today: see Meter.
        spent: why there may be no new connections; empty if there may."""
        self._spent = spent
        self.connections = self.refused = 0
        self.meter = Meter(limits, used_today=used_today)
        self._agent = agent
        self._subject = subject
        self._limits = limits
        self._report = report
        self._meet = meet
        self._out = Outbound(rules=rules, dialer=dialer, meter=self.meter, report=self._note)
        self._waiting: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()

    def __repr__(self) -> str:
        return (
            f"<Egress of {self._subject.thread_id} {self.open} open,"
            f" {self.connections} so far, {self.refused} refused>"
        )

    @property
    def open(self) -> int:
        """Connections that are served now."""
        return len(self._serving)

    def start(self) -> None:
        # In an empty context, without the log fields of the request that made the session.
        self._running = asyncio.create_task(self._run(), context=Context())

    def use(self, rules: RuleSet) -> None:
        """Judge by these from now on, and cut what they do not allow any more."""
        self._out.use(rules)

    def cut(self) -> None:
        """End connections that the rules do not allow any more: they have changed."""
        self._out.cut()

    async def listening(self) -> None:
        """Wait until what the box connects to is there, unless that takes long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTENING_S):
                await self._listening.wait()

    async def close(self) -> None:
        """End all connections."""
        if self._running is not None:
            await stop(self._running)
        await stop(*self._serving)

    def _note(self, note: Note) -> None:
        self.connections += 1
        self.refused += note.verdict is Verdict.REFUSED
        self._report(self._subject, note)

    async def _run(self) -> None:
        backoff = Backoff(*_AGAIN_S)
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self._meet()
                await self._keep_accepting()
            except (Fenced, InvalidRequest, SessionLost) as exc:
                # Its box has another owner, cannot do this, or is gone.
                log.info("egress.off", thread=self._subject.thread_id, why=exc.message)
                return
            except SandboxError as exc:
                log.info("egress.unreachable", thread=self._subject.thread_id, why=exc.message)
            except Exception:  # A hostile box may trigger anything.
                log.exception("egress.broke", thread=self._subject.thread_id)
            finally:
                self._listening.set()  # Nobody waits for what does not come.
            if clock() - began > _STEADY_S:
                backoff.reset()
            await asyncio.sleep(backoff.pause_s(clock()) or 0)

    async def _keep_accepting(self) -> None:
        """Until the link breaks. Raises what accept() does."""
        try:
            self._accept_more()
            await asyncio.sleep(0)
            await self._agent.ping()  # What is sent to the box from now on comes later.
            self._listening.set()
            while True:
                self._changed.clear()
                for task in [task for task in self._waiting if task.done()]:
                    self._waiting.discard(task)
                    task.result()
                self._accept_more()
                await self._changed.wait()
        finally:
            await stop(*self._waiting)
            self._waiting.clear()

    def _accept_more(self) -> None:
        # One more than the session may have: that one is told so.
        room = self._limits.connections + 1 - len(self._serving)
        for _ in range(min(AHEAD, room) - len(self._waiting)):
            task = asyncio.create_task(self._accept())
            self._waiting.add(task)
            task.add_done_callback(lambda _: self._changed.set())

    async def _accept(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with self._agent.accept(PROXY_PORT) as channel:
                self._waiting.discard(task)
                self._serving.add(task)
                self._changed.set()
                await self._serve(channel, over=len(self._serving) > self._limits.connections)
        except SandboxError:
            if task not in self._serving:
                raise
        finally:
            self._serving.discard(task)

    async def _serve(self, channel: ByteChannel, *, over: bool) -> None:
        """Whatever goes wrong with one connection, the next ones are served."""
        box = MeteredChannel(channel, self.meter)
        try:
            with contextlib.suppress(TimeoutError, SandboxError, OSError, Refused):
                async with asyncio.timeout(_FIRST_S):
                    first = await box.first()
                refused = self._full() if over else self._used_up()
                if first[:1] == bytes([socks.VERSION]):
                    await SocksProxy(box, self._out).serve(first, refused=refused)
                elif first:
                    await HttpProxy(box, self._out).serve(first, refused=refused)
        except Exception:
            log.exception("egress.broke", thread=self._subject.thread_id)

    def _full(self) -> Refused:
        return Refused(
            f"this sandbox has {self._limits.connections} connections open, and may not have more:"
            " close some.",
            status=503,
        )

    def _used_up(self) -> Refused | None:
        why = self._spent()
        return Refused(why, status=429) if why else None


def log_note(subject: Subject, note: Note) -> None:
    log.info("egress.connection", **facts_of(subject, note))


def facts_of(subject: Subject, note: Note) -> dict[str, object]:
    """A connection as logs tell it."""
    return {
        "tenant": subject.tenant,
        "thread": subject.thread_id,
        "session": subject.session_id,
        "host": note.host,
        "port": note.port,
        "method": note.method,
        "verdict": note.verdict.value,
        **({"why": note.why} if note.why else {}),
        "bytes_in": note.bytes_in,
        "bytes_out": note.bytes_out,
        "duration_ms": round((time.monotonic() - note.began) * 1000, 1),
    }
