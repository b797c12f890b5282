"""What this installation adds to the SDK, found by the entry points of its package: the SDK itself
imports nothing of a server."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Any

COMMANDS = "agent_sandbox.commands"
"""Each a function that adds subcommands to the command line."""
LOCAL = "agent_sandbox.local"
"""`host`: a function that runs the local service."""


def plugins(group: str) -> Iterator[EntryPoint]:
    try:
        found = distribution("agent-sandbox").entry_points.select(group=group)
    except PackageNotFoundError:  # Run from a folder, without being installed.
        return
    yield from found


def plugin(group: str, name: str) -> Any:
    """Raises ModuleNotFoundError where it is not there, or something that it needs."""
    for found in plugins(group):
        if found.name == name:
            return found.load()
    raise ModuleNotFoundError(f"agent-sandbox is installed without {group} {name}")
