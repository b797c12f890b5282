"""Finds optional parts, such as the server, by entry points: the SDK never imports them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any

COMMANDS = "agent_sandbox.commands"
"""Each a function that adds subcommands to the command line."""
LOCAL = "agent_sandbox.local"
"""`host`: a function that runs the local service."""
RUNTIMES = "agent_sandbox.runtimes"
"""Each a function that makes a runtime; other packages may add theirs."""


def own(group: str) -> Iterator[EntryPoint]:
    """The entry points of this package. Fast: other packages are not searched."""
    try:
        yield from distribution("agent-sandbox").entry_points.select(group=group)
    except PackageNotFoundError:  # Run from a folder, without being installed.
        return


def names(group: str) -> list[str]:
    """The names in a group, over all packages."""
    return sorted({found.name for found in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """Raises LookupError where there is no such thing, ImportError where it lacks something."""
    for found in (*own(group), *entry_points(group=group, name=name)):
        if found.name == name:
            return found.load()
    raise LookupError(f"no installed package has an entry point {name!r} in the group {group}")
