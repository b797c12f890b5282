"""`sandbox doctor`: what is there, what is missing, how boxes are confined, and the exact fix."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import SandboxError


def doctor(
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help="Measure from inside how a fresh box of this machine is confined, and look for"
            " versions with known escapes.",
        ),
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Check this machine and the server, and say how to mend what is missing.

    Leaves with 1 where something is missing that is needed: with SANDBOX_URL that server, without
    it what makes boxes here. With --security, where a box is not confined as it should be.
    """
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_doctor(caller, security=security))


async def _doctor(caller: Caller, *, security: bool) -> int:
    found = []
    async with contextlib.aclosing(_security() if security else _findings(caller)) as findings:
        async for finding in findings:
            found.append(finding)
            if not caller.json:
                _print(finding)
    sound = not any(finding["state"] in ("missing", "failed") for finding in found)
    if caller.json:
        caller.tell({"ok": sound, "findings": found})
    return 0 if sound else 1


async def _security() -> AsyncGenerator[dict[str, str]]:
    try:
        from sandbox_server.doctor import examine_security
        from sandbox_server.settings import load
    except ModuleNotFoundError as exc:
        yield _finding("server", "missing", str(exc), "pip install 'agent-sandbox[server]'")
        return
    async with contextlib.aclosing(examine_security(load())) as findings:
        async for each in findings:
            yield _finding(each.name, each.state, each.told, each.fix)


async def _findings(caller: Caller) -> AsyncGenerator[dict[str, str]]:
    try:
        from sandbox_server.doctor import examine
        from sandbox_server.settings import load
    except ModuleNotFoundError as exc:
        state = "optional" if caller.url else "missing"
        yield _finding("server", state, str(exc), "pip install 'agent-sandbox[server]'")
    else:
        async for each in examine(load(), makes_boxes=not caller.url):
            yield _finding(each.name, each.state, each.told, each.fix)
    if caller.url:
        yield await _server(caller, caller.url)


async def _server(caller: Caller, url: str) -> dict[str, str]:
    try:
        async with caller.sandboxes() as sandboxes:
            health = await sandboxes.health()
            await sandboxes.sessions()  # Unlike health, this needs a key where there are keys.
    except SandboxError as exc:
        fix = "start one with `sandbox serve`, or mend SANDBOX_URL and SANDBOX_API_KEY"
        return _finding("server", "missing", f"{url}: {exc.message}", fix)
    told = f"{url} is {health.status}: {health.version}, {health.runtime} boxes"
    if health.status == "unhealthy":
        why = "; ".join(f"{name}: {told}" for name, told in health.checks.items() if told != "ok")
        return _finding("server", "missing", told, why)
    return _finding("server", "ok", told)


def _finding(name: str, state: str, told: str, fix: str = "") -> dict[str, str]:
    return {"name": name, "state": str(state), "told": told, "fix": fix}


def _print(finding: dict[str, str]) -> None:
    from rich.console import Console

    colour = {"ok": "green", "missing": "red", "failed": "red"}.get(finding["state"], "yellow")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{finding['state']:<9}", style=colour, end="")
    console.print(f"{finding['name']:<19}{escaped(finding['told'])}", markup=False)
    if finding["fix"]:
        console.print(f"{'':<28}fix: {escaped(finding['fix'])}", markup=False)
