"""What subcommands share that work on the machine of a server, with its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox_sdk.cli.caller import subcommand
from sandbox_sdk.protocol.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from sandbox_server.settings import Settings

local = partial(subcommand, without=("url", "api_key"))
"""A subcommand that calls no server."""


@contextmanager
def needs_server(what: str = "this") -> Iterator[None]:
    """Around imports of the server. Raises RuntimeUnavailable where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise RuntimeUnavailable(
            f"{what} needs `pip install 'agent-sandbox[server]'` ({exc})"
        ) from None


def settings_of(file: Path | None, *, what: str = "this", **options: object) -> Settings:
    """The settings in force, with those of a file. Raises InvalidRequest, RuntimeUnavailable."""
    with needs_server(what):
        from sandbox_server.settings import load
        from sandbox_server.settings.file import read_into_environment
    if file is not None:
        read_into_environment(file)
    return load(**options)
