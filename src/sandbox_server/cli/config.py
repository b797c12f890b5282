"""`sandbox config`: the settings in force."""

from __future__ import annotations

from typing import Any

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import SandboxError


def config(url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Show what is in force: for clients, and for a server started from here. Keys are hidden."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    client = {
        "url": url or "none: boxes are made by this process",
        "api_key": "set" if api_key else "none",
    }
    try:
        server = _server()
    except SandboxError as exc:
        caller.fail(exc)
    if as_json:
        caller.tell({"client": {**client, "url": url}, "server": server})
        return
    print_settings(caller, {f"client {name}": value for name, value in client.items()})
    print_settings(caller, server or {"server": "not installed: pip install agent-sandbox[server]"})


def print_settings(caller: Caller, settings: dict[str, Any]) -> None:
    if caller.json:
        caller.tell(settings)
        return
    for name, value in settings.items():
        print(f"{name} = {escaped(str(value))}")


def _server() -> dict[str, Any] | None:
    try:
        from sandbox_server.settings import load
    except ModuleNotFoundError:
        return None
    return load().in_force()
