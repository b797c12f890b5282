"""Where concrete classes are put together, and nowhere else."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator

import structlog
import uvicorn

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server import logs
from sandbox_server.api.app import create_app
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.limits import ApiLimits
from sandbox_server.audit import AuditLog
from sandbox_server.gate import Gate
from sandbox_server.policy.rulefile import PolicyError
from sandbox_server.runtime.base import Enforcement
from sandbox_server.runtime.choose import choose
from sandbox_server.service import SandboxService, ServiceFacts
from sandbox_server.settings import Settings, load
from sandbox_server.worker import Worker

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[SandboxService]:
    """A running service on the best runtime there is. Leaving lets go of it; boxes live on.

    Raises PolicyError for a rule file that cannot be used.
    """
    with open_gate(settings) as gate:
        async with _open_service(settings, gate) as service:
            yield service


@contextlib.contextmanager
def open_gate(settings: Settings) -> Iterator[Gate]:
    with contextlib.ExitStack() as stack:
        audit = None
        if settings.audit_log is not None:
            audit = stack.enter_context(AuditLog(settings.audit_log))
        gate = Gate.read(settings.policy, settings.policies, audit=audit)
        yield gate
        log.info("policy.verdicts", **gate.counts)


@contextlib.asynccontextmanager
async def _open_service(settings: Settings, gate: Gate) -> AsyncIterator[SandboxService]:
    state = settings.state_folder()
    runtime, why = await choose(
        settings.runtime, engine_runtime=settings.docker_runtime, state_dir=state
    )
    async with runtime:
        enforcement = await runtime.enforcement()
        log.info("runtime.chosen", runtime=runtime.name, why=why)
        for limit, lack in enforcement.missing().items():
            log.warning("limit.not_enforced", limit=limit, why=lack)
        worker = Worker(
            runtime,
            settings.box_spec(settings.name()),
            pool=settings.pool(),
            environments=settings.environments,
            idle_timeout_s=settings.idle_timeout,
            capacity=settings.max_sessions,
            state_dir=state,
            destroy_on_exit=settings.destroy_on_exit,
        )
        async with worker:
            facts = ServiceFacts(
                worker_id=settings.name(),
                runtime=runtime.name,
                limits=_limits(settings, enforcement),
            )
            yield SandboxService(worker.table, facts, health=worker.health, gate=gate)


async def serve(settings: Settings) -> None:
    async with open_service(settings) as service:
        keys = ApiKeys.parse(settings.api_keys.get_secret_value())
        app = create_app(service, keys=keys, limits=ApiLimits(upload_bytes=settings.max_upload))
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=round(settings.drain_timeout),
        )
        await _Server(config, service).serve()


class _Server(uvicorn.Server):
    """Says where it listens and what to try, as soon as it does."""

    def __init__(self, config: uvicorn.Config, service: SandboxService) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its own shutdown, before ours."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            url = f"http://{self.config.host}:{port}"
            print(_welcome(url, await self._service.health()), file=sys.stderr, flush=True)


def _welcome(url: str, health: models.Health) -> str:
    return f"""
  Sandboxes at {url}  ({health.runtime} boxes, room for {health.capacity} sessions)
  Reference at {url}/docs

  Try:
    curl -s {url}/execute -H 'content-type: application/json' \\
         -d '{{"thread_id": "demo", "command": "whoami; echo $((2+2)) > four; cat four"}}'
    curl -s '{url}/list_files?thread_id=demo'
"""


def _limits(settings: Settings, enforcement: Enforcement) -> models.Limits:
    return models.Limits(
        memory_bytes=settings.memory_limit,
        cpus=settings.cpu_limit,
        pids=settings.pids_limit,
        disk_bytes=settings.disk_limit,
        command_timeout_s=settings.command_timeout,
        output_limit_bytes=settings.output_limit,
        upload_limit_bytes=settings.max_upload,
        network=settings.network,
        not_enforced=enforcement.missing(),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m sandbox_server", description=__doc__)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--runtime", choices=["auto", "docker", "bubblewrap"])
    parser.add_argument("--insecure", action="store_true", default=None)
    parser.add_argument("--destroy-on-exit", action="store_true", default=None)
    parser.add_argument("--print-config", action="store_true", help="print settings and stop")
    options = vars(parser.parse_args(argv))
    show = options.pop("print_config")
    settings = load(**options)
    if show:
        print("\n".join(f"{name} = {value}" for name, value in settings.in_force().items()))
        return
    logs.configure(form=settings.log_format, level=settings.log_level)
    try:
        asyncio.run(serve(settings))
    except (SandboxError, PolicyError) as exc:
        raise SystemExit(f"sandbox: {exc}") from None
    except KeyboardInterrupt:
        pass
