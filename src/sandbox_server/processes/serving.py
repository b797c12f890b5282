"""`sandbox serve --processes N`: makes what the processes share, and supervises them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import socket
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from urllib.parse import urlsplit

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import Limits
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server import logs
from sandbox_server.access.limiter import MemoryLimiter
from sandbox_server.access.opening import limit_rules
from sandbox_server.api.metrics import bind_metrics
from sandbox_server.api.server import bound, url_of
from sandbox_server.checks import check_settings
from sandbox_server.event_loop import run_server
from sandbox_server.main import Left, log_unused, open_registry, serve
from sandbox_server.previews.opening import PreviewPort, bind_previews
from sandbox_server.processes.child import Shared, part_of, serve_share, tell_left, told_facts
from sandbox_server.processes.supervisor import Message, Report, Supervisor
from sandbox_server.service import ServiceFacts
from sandbox_server.sessions.lease import alone
from sandbox_server.sessions.share import Share, shared_counts
from sandbox_server.settings import Settings

log = structlog.get_logger()

_PREDECESSOR_S = 3.0
_PREDECESSOR_LOOK_S = 0.02

OnListening = Callable[[str, ServiceFacts, PreviewPort | None], None]
"""Called with the url, the facts of one process and where previews are once all listen."""


def serve_processes(settings: Settings, *, on_listening: OnListening) -> Left:
    """Serve until SIGINT or SIGTERM. Raises SandboxError if the server cannot start."""
    asyncio.run(check_settings(settings))
    log_unused(settings)
    with alone(settings.state_folder(), settings.name()):
        if settings.role == "worker":
            return _supervise_workers(settings, on_listening)
        return _supervise(settings, on_listening)


def _supervise(settings: Settings, on_listening: OnListening) -> Left:
    count, name = settings.processes, settings.name()
    # Once, before there are several to do it at the same time.
    asyncio.run(open_registry(Share(name=name), settings.state_folder()).close())
    with contextlib.ExitStack() as stack:
        shared = _make_shared(settings, stack)
        url = url_of(shared.listeners[0])

        def run(index: int, report: Report) -> None:
            _log_as(settings, index)
            share = Share(name=name, index=index, count=count)
            run_server(serve_share(settings, share, shared, report))

        def stop() -> None:
            # Ours too, so that callers are refused, and try again at the next server.
            for sock in (*shared.listeners, *shared.arriving):
                sock.close()
            shared.previews.close()
            if shared.metrics is not None:
                shared.metrics.close()

        def died(index: int) -> None:
            shared.up[index] = 0

        def ready(told: list[Message]) -> None:
            on_listening(url, _facts(name, told[0]), shared.previews)

        supervisor = Supervisor(count, run, on_ready=ready, on_stop=stop, on_death=died)
        return _all_left(supervisor.supervise())


def _make_shared(settings: Settings, stack: contextlib.ExitStack) -> Shared:
    count = settings.processes
    port = free_port(settings.host, settings.listening_port())
    listeners = [stack.enter_context(bound(settings.host, port, shared=True)) for _ in range(count)]
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
    for pair in pairs:
        for sock in pair:
            sock.setblocking(False)
            stack.enter_context(sock)
    return Shared(
        listeners=listeners,
        arriving=[arriving for arriving, _ in pairs],
        leaving=[leaving for _, leaving in pairs],
        counts=shared_counts(count),
        up=memoryview(mmap.mmap(-1, count)).cast("b"),
        previews=stack.enter_context(bind_previews(settings, port)),
        limiter=MemoryLimiter(count) if limit_rules(settings) else None,
        metrics=stack.enter_context(bind_metrics(settings)),
    )


def free_port(host: str, port: int) -> int:
    """The port, once nobody listens on it. Raises RuntimeUnavailable if it stays in use: servers
    must never share one. The processes of a killed server end a moment after their parent, and the
    next server may start before that."""
    deadline = time.monotonic() + _PREDECESSOR_S
    while True:
        try:
            with bound(host, port) as probe:
                return int(probe.getsockname()[1])
        except RuntimeUnavailable as exc:
            in_use = getattr(exc.__cause__, "errno", None) == errno.EADDRINUSE
            if not in_use or time.monotonic() > deadline:
                raise
        time.sleep(_PREDECESSOR_LOOK_S)


def _supervise_workers(settings: Settings, on_listening: OnListening) -> Left:
    """Each process is a worker of the fleet by itself, on a port of its own: coordinators find the
    one that has a thread."""

    def run(index: int, report: Report) -> None:
        _log_as(settings, index)
        worker = worker_settings(settings, index)
        run_server(_serve_worker(worker, report))

    def ready(told: list[Message]) -> None:
        on_listening(told[0]["url"], _facts(settings.name(), told[0]), None)

    def nothing(*_: object) -> None:
        """No-op: workers share nothing."""

    count, port = settings.processes, settings.listening_port()
    for index in range(count if port else 0):
        free_port(settings.host, port + index)
    supervisor = Supervisor(count, run, on_ready=ready, on_stop=nothing, on_death=nothing)
    return _all_left(supervisor.supervise())


def worker_settings(settings: Settings, index: int) -> Settings:
    """Of one process of a worker. Sessions are divided, too: coordinators see how full each is."""
    count, port = settings.processes, settings.listening_port()
    more = 1 if index < settings.max_sessions % count else 0
    return part_of(settings, count).model_copy(
        update={
            "worker_id": Share(name=settings.name(), index=index, count=count).owner,
            "max_sessions": max(settings.max_sessions // count + more, 1),
            "total_memory": settings.total_memory
            and max(settings.total_memory // count, settings.memory_limit),
            "port": port + index if port else 0,
            "metrics_port": settings.metrics_port and settings.metrics_port + index,
            "advertise": _advertised(settings.advertise, index),
        }
    )


def _advertised(url: str, index: int) -> str:
    """The URL with the port of a process."""
    parts = urlsplit(url)
    if not url or not index:
        return url
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(netloc=f"{host}:{port + index}").geturl()


async def _serve_worker(settings: Settings, report: Report) -> None:
    left = await serve(settings, on_listening=partial(_tell_worker, report))
    tell_left(left, report)


async def _tell_worker(
    report: Report, url: str, tenants: Tenants, _previews: PreviewPort | None
) -> None:
    facts: ServiceFacts = tenants.facts  # type: ignore[attr-defined]
    report({"ready": {"url": url, **told_facts(facts)}})


def _log_as(settings: Settings, index: int) -> None:
    logs.configure(form=settings.log_format, level=settings.log_level, process=index)


def _facts(name: str, told: Message) -> ServiceFacts:
    limits = Limits.model_validate(told["limits"])
    return ServiceFacts(
        worker_id=name,
        runtime=told["runtime"],
        why=told["why"],
        limits=limits,
        by_provider=dict.fromkeys(told["providers"], limits),
    )


def _all_left(told: list[Message]) -> Left:
    times = [datetime.fromisoformat(each["until"]) for each in told if each["until"]]
    return Left(sum(each["left"] for each in told), max(times, default=None))
