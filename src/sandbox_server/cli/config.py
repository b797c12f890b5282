"""`sandbox config`: the settings in force."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import SettingsFile
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.variables import VARIABLES
from sandbox_server.cli.local import settings_of

if TYPE_CHECKING:
    from sandbox_server.settings import Settings

_HEADS = ("SETTING", "VALUE", "SET BY", "MEANING")


def config(*, settings: SettingsFile = None, caller: Caller) -> None:
    """Show what is in force: for clients, and for a server started from here. Keys are hidden."""
    loaded = _loaded(settings)
    warnings = warnings_about(loaded) if loaded else {}
    if caller.json:
        client = {"url": caller.url, "api_key": "set" if caller.api_key else "none"}
        server = loaded.in_force() if loaded else None
        is_set = sorted(loaded.model_fields_set) if loaded else []
        caller.tell({"client": client, "server": server, "set": is_set, "warnings": warnings})
        return
    rows = [*_client_rows(caller.url, caller.api_key), *(_rows(loaded) if loaded else ())]
    caller.table(_HEADS, rows)
    if loaded is None:
        caller.complain("no server is installed here: pip install 'agent-sandbox[server]'")
    for name, why in warnings.items():
        caller.complain(f"{name}: {why}")


def print_settings(caller: Caller, settings: Settings) -> None:
    """For `serve --print-config`."""
    caller.say_table(settings.in_force(), _HEADS, _rows(settings))
    for name, why in warnings_about(settings).items():
        caller.complain(f"{name}: {why}")


def warnings_about(settings: Settings) -> dict[str, str]:
    """Variables that are unknown, or mean nothing in this role, and why."""
    from sandbox_server.unused import unknown, unused

    return {**unused(settings), **unknown(os.environ)}


def _loaded(file: Path | None) -> Settings | None:
    """Raises InvalidRequest. None where the server is not installed."""
    try:
        return settings_of(file)
    except RuntimeUnavailable:
        return None


def _client_rows(url: str | None, api_key: str | None) -> list[tuple[str, str, str, str]]:
    thread = os.environ.get("SANDBOX_THREAD")
    values = {"SANDBOX_URL": url, "SANDBOX_API_KEY": "**********" if api_key else None,
              "SANDBOX_THREAD": thread}  # fmt: skip
    return [
        (name, values[name] or "(none)", "environment" if values[name] else "default", meaning)
        for name, meaning in VARIABLES.items()
    ]


def _rows(settings: Settings) -> list[tuple[str, str, str, str]]:
    from sandbox_server.settings import entries

    rows = []
    for entry in entries():
        name, by = entry.variable, "default"
        if entry.name in settings.model_fields_set:
            name = settings.variable(entry.name)
            name, by = (entry.variable, "option") if name == entry.name else (name, "environment")
        value = entry.text(getattr(settings, entry.name))
        rows.append((name, value or f"({entry.about.otherwise or 'none'})", by, entry.meaning))
    return rows
