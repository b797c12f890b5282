"""`sandbox doctor`: what is missing, how boxes are confined, and the fixes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError
from sandbox_server.cli.config import warnings_about
from sandbox_server.doctor.findings import Finding, State

if TYPE_CHECKING:
    from sandbox_server.settings import Settings


async def doctor(
    *,
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help="Measure from inside how a new box on this machine is confined, and look for"
            " versions with known escapes.",
        ),
    ] = False,
    caller: Caller,
) -> int:
    """Check this machine and the server, and say how to fix what is missing.

    Exits with 1 if something needed is missing: with SANDBOX_URL that server, without it a runtime
    on this machine. With --security, if a box is not confined as it should be.
    """
    found = []
    async with contextlib.aclosing(_security() if security else _findings(caller)) as findings:
        async for finding in findings:
            found.append(finding)
            if not caller.json:
                _print(finding)
    ok = not any(finding.state in (State.MISSING, State.FAILED) for finding in found)
    if caller.json:
        caller.tell({"ok": ok, "findings": [asdict(finding) for finding in found]})
    return 0 if ok else 1


async def _security() -> AsyncGenerator[Finding]:
    try:
        from sandbox_server.doctor.security import examine_security
        from sandbox_server.settings import load
    except ModuleNotFoundError as exc:
        yield _not_installed(exc, State.MISSING)
        return
    async with contextlib.aclosing(examine_security(load())) as findings:
        async for each in findings:
            yield each


async def _findings(caller: Caller) -> AsyncGenerator[Finding]:
    try:
        from sandbox_server.doctor.machine import examine
        from sandbox_server.settings import load
    except ModuleNotFoundError as exc:
        yield _not_installed(exc, State.OPTIONAL if caller.url else State.MISSING)
    else:
        settings = load()
        async for each in _settings(settings, makes_boxes=not caller.url):
            yield each
        async for each in examine(settings, makes_boxes=not caller.url):
            yield each
    if caller.url:
        yield await _server(caller, caller.url)


async def _settings(settings: Settings, *, makes_boxes: bool) -> AsyncGenerator[Finding]:
    from sandbox_server.checks import check_start

    name, wrong = "settings", warnings_about(settings)
    for variable, why in wrong.items():
        yield Finding(name, State.WARNING, f"{variable}: {why}")
    if makes_boxes:
        try:
            await check_start(settings)
        except InvalidRequest as exc:
            yield Finding(name, State.MISSING, "a server would not start",
                          fix=exc.message)  # fmt: skip
            return
        except SandboxError:
            pass  # The checks of the runtimes tell it, each with its fix.
    if not wrong:
        told = f"{len(settings.model_fields_set)} set; `sandbox config` shows all"
        yield Finding(name, State.OK, told)


async def _server(caller: Caller, url: str) -> Finding:
    try:
        async with caller.sandboxes() as sandboxes:
            health = await sandboxes.health()
            await sandboxes.sessions()  # Unlike health, this checks the API key.
    except SandboxError as exc:
        fix = "start one with `sandbox serve`, or correct SANDBOX_URL and SANDBOX_API_KEY"
        return Finding("server", State.MISSING, f"{url}: {exc.message}", fix=fix)
    told = f"{url} is {health.status}: {health.version}, {health.runtime} boxes"
    if health.status == "unhealthy":
        why = "; ".join(f"{name}: {text}" for name, text in health.checks.items() if text != "ok")
        return Finding("server", State.MISSING, told, fix=why)
    return Finding("server", State.OK, told)


def _not_installed(exc: ModuleNotFoundError, state: State) -> Finding:
    return Finding("server", state, str(exc), fix="pip install 'agent-sandbox[server]'")


def _print(finding: Finding) -> None:
    from rich.console import Console

    colours = {State.OK: "green", State.MISSING: "red", State.FAILED: "red"}
    colour = colours.get(finding.state, "yellow")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{finding.state:<9}", style=colour, end="")
    console.print(f"{finding.name:<19}{escaped(finding.told)}", markup=False)
    if finding.fix:
        console.print(f"{'':<28}fix: {escaped(finding.fix)}", markup=False)
