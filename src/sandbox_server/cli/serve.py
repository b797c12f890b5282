"""`sandbox serve`: run the server, and print a greeting when it has started."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import SettingsFile
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.cli.config import print_settings
from sandbox_server.cli.local import settings_of
from sandbox_server.event_loop import fast_loop
from sandbox_server.stopping import heed

if TYPE_CHECKING:
    from sandbox_sdk.protocol.models import Limits
    from sandbox_sdk.protocol.sandboxes import Tenants
    from sandbox_server.main import Left
    from sandbox_server.previews.opening import PreviewPort
    from sandbox_server.service import SandboxService, ServiceFacts
    from sandbox_server.settings import Settings

_LOOK_S = 0.1


def serve(
    *,
    role: Annotated[
        Literal["standalone", "worker", "coordinator"] | None,
        typer.Option(help="A part of a fleet, or all in one [default: standalone]."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen [default: 127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(help="0 picks a free one [default: 8000, a worker's 5000].")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="What makes boxes [default: auto: docker if an engine answers]."),
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Listen on other addresses without API keys.")
    ] = None,
    destroy_on_exit: Annotated[
        bool | None, typer.Option("--destroy-on-exit", help="End all boxes when the server ends.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Processes, for as many cores [default: 1].")
    ] = None,
    settings_file: SettingsFile = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Check the settings, print them and stop.")
    ] = False,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="End what a stopped server has left, and stop.")
    ] = False,
    caller: Caller,
) -> None:
    """Run the server.

    Every other setting is a variable SANDBOX_…: `sandbox config` lists them, `sandbox init` writes
    a file of them. Log and greeting go to stderr. With --json, one line on stdout has the url as
    soon as the server listens.
    """
    given = {
        "role": role, "host": host, "port": port, "runtime": runtime, "processes": processes
    }  # fmt: skip
    flags = {"insecure": insecure, "destroy_on_exit": destroy_on_exit}
    settings = settings_of(settings_file, what="a server", **given, **flags)
    from sandbox_server import main  # noqa: F401 - slow to import, so before the event loop runs

    if print_config or end_sessions:
        heed()
    if print_config:
        caller.run(_print_config(caller, settings))
    options = {"settings": settings_file, **given}
    again = f"{_program('sandbox')} serve" + "".join(
        f" --{name} {shlex.quote(str(value))}"
        for name, value in options.items()
        if value is not None
    )
    if end_sessions:
        caller.run(_end_sessions(caller, settings), loop=fast_loop())
    if settings.processes > 1 and settings.role != "coordinator":
        _serve_processes(caller, settings, again)
    else:
        caller.run(_serve(caller, settings, again), loop=fast_loop())


async def _print_config(caller: Caller, settings: Settings) -> None:
    """Settings with which the server would not start are refused as it would."""
    from sandbox_server.checks import check_start

    await check_start(settings)
    print_settings(caller, settings)


async def _end_sessions(caller: Caller, settings: Settings) -> None:
    from sandbox_server import logs
    from sandbox_server.main import end_sessions

    if settings.role != "standalone":
        raise InvalidRequest(
            "--end-sessions is for a standalone server: start a worker with --destroy-on-exit and"
            " stop it again; a coordinator has no sessions"
        )
    logs.configure(form=settings.log_format, level="warning")
    ended = await end_sessions(settings)
    told = "1 session ended" if ended == 1 else f"{ended} sessions ended"
    caller.say({"ended": ended}, told)


async def _serve(caller: Caller, settings: Settings, again: str) -> None:
    """again: the command that started this server."""
    from sandbox_server import logs
    from sandbox_server.main import serve
    from sandbox_server.service import SandboxService

    logs.configure(form=settings.log_format, level=settings.log_level)

    async def greet(url: str, tenants: Tenants, previews: PreviewPort | None) -> None:
        if not isinstance(tenants, SandboxService):
            await _greet_for_fleet(caller, url, tenants, previews)
        elif caller.json:
            _tell_facts(caller, url, tenants.facts, previews)
        elif settings.log_format != "json":  # With JSON, stderr is read by a program.
            print(greeting(url, tenants.facts, settings, previews), file=sys.stderr, flush=True)
            await _warming(tenants, settings.pool_size)

    left = await serve(settings, on_listening=greet)
    _part(caller, settings, left, again)


def _serve_processes(caller: Caller, settings: Settings, again: str) -> None:
    """Without an event loop: that belongs to each of the processes."""
    from sandbox_server import logs
    from sandbox_server.processes.serving import serve_processes

    logs.configure(form=settings.log_format, level=settings.log_level)
    gc.enable()  # The start is over, see main().

    def greet(url: str, facts: ServiceFacts, previews: PreviewPort | None) -> None:
        if caller.json:
            _tell_facts(caller, url, facts, previews)
        elif settings.log_format != "json":
            print(greeting(url, facts, settings, previews), file=sys.stderr, flush=True)

    _part(caller, settings, serve_processes(settings, on_listening=greet), again)


def _tell_facts(
    caller: Caller, url: str, facts: ServiceFacts, previews: PreviewPort | None
) -> None:
    limits, providers = facts.limits.model_dump(mode="json"), list(facts.by_provider)
    caller.tell(
        {"url": url, "runtime": facts.runtime, "why": facts.why, "limits": limits,
         "providers": providers, "previews": previews and str(previews)}
    )  # fmt: skip


def _part(caller: Caller, settings: Settings, left: Left, again: str) -> None:
    if not caller.json and settings.log_format != "json":
        print(farewell(left, settings.role, again), file=sys.stderr, flush=True)


def farewell(left: Left, role: str, again: str) -> str:
    """Which boxes keep running, and how to end them. again: the command that started the server."""
    if role == "coordinator":
        return "  stopped; sessions go on at their workers"
    if left.until is None:
        return "  stopped; no session and no box stays"
    one = left.sessions == 1
    boxes = "the box of 1 session stays" if one else f"the boxes of {left.sessions} sessions stay"
    end = "--end-sessions" if role == "standalone" else "--destroy-on-exit, and stop it"
    return (
        f"  {boxes} for the next start, until {left.until.astimezone():%H:%M} at the latest;"
        f" to end {'it' if one else 'them'} now: {again} {end}"
    )


async def _greet_for_fleet(
    caller: Caller, url: str, tenants: Tenants, previews: PreviewPort | None
) -> None:
    health = await tenants.health()
    if caller.json:
        told = previews and str(previews)
        caller.tell({"url": url, "role": health.role, "checks": health.checks, "previews": told})
        return
    checks = "\n".join(f"    {name:<30} {state}" for name, state in health.checks.items())
    print(
        f"\n  A coordinator at {url}, reference at {url}/docs\n"
        f"  previews at {previews}\n"
        f"  for e2b's SDK: {_e2b(url)}\n\n{checks}\n",
        file=sys.stderr,
        flush=True,
    )


async def _warming(service: SandboxService, wanted: int) -> None:
    """Show how the pool fills up: a progress bar on a terminal, and a line when it is full."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    began = time.monotonic()
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("warming boxes", total=wanted)
        while (health := await service.health()).pool_size < wanted:
            bar.update(task, completed=health.pool_size)
            if health.active_sessions or health.status == "unhealthy":
                return  # Boxes are in use already, or the log shows why there are none.
            await asyncio.sleep(_LOOK_S)
    took_s = time.monotonic() - began
    boxes = "1 box is" if wanted == 1 else f"{wanted} boxes are"
    print(f"  {boxes} warm after {took_s:.1f} s", file=sys.stderr, flush=True)


def greeting(
    url: str, facts: ServiceFacts, settings: Settings, previews: PreviewPort | None = None
) -> str:
    """The runtime, the limits, and commands to try."""
    snippet = 'print(SandboxClient("demo").execute("cat four greeting").output)'
    idle_min = settings.idle_timeout / 60
    lacks = "".join(
        f"\n    {name:<9}{_wrapped(why)}" for name, why in facts.limits.not_enforced.items()
    )
    keyed = bool(settings.api_keys.get_secret_value())
    header = ' -H "authorization: Bearer $SANDBOX_API_KEY"' if keyed else ""
    needs_key = "\n  (set SANDBOX_API_KEY to one of the keys first)" if keyed else ""
    console = f", console at {url}/console" if settings.console else ""
    shown = "" if previews is None else f"\n  previews   {_wrapped(str(previews))}"
    return f"""
  Sandboxes at {url}, reference at {url}/docs{console}

  runtime    {_wrapped(facts.why)}
  each box   {_limits(facts.limits)}
  sessions   {settings.max_sessions} at most; idle for {idle_min:g} min, a session ends{shown}
  e2b's SDK  {_e2b(url)}
  not enforced on this machine:{lacks or " nothing, all limits hold"}

  Try, in another terminal:{needs_key}

    curl -s {url}/execute{header} \\
         -d '{{"thread_id": "demo", "command": "whoami; echo $((2+2)) > four; cat four"}}'

    export SANDBOX_URL={url}
    {_program("sandbox")} run --thread demo 'ls -l; echo hello > greeting'
    {_program("python")} -c 'from sandbox_sdk import SandboxClient; {snippet}'
"""


def _e2b(url: str) -> str:
    """The variables of e2b's SDK."""
    return f"E2B_API_URL={url}/e2b E2B_SANDBOX_URL={url}/e2b"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 84, subsequent_indent=" " * 13, break_on_hyphens=False)


def _limits(limits: Limits) -> str:
    return (
        f"{limits.memory_bytes >> 20} MiB of memory, {limits.cpus:g} CPU, {limits.pids} processes,"
        f" {limits.disk_bytes >> 20} MiB of disk, network: {limits.network}"
    )


def _program(name: str) -> str:
    """How to call a program of this installation from the current folder."""
    found = Path(sys.executable).with_name(name)
    folder = Path.cwd()
    if str(found.parent) in os.environ.get("PATH", "").split(os.pathsep):
        return name
    return str(found.relative_to(folder)) if found.is_relative_to(folder) else str(found)
