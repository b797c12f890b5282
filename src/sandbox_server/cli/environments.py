"""`sandbox environments`: what boxes can have in them, built ahead of its first use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import SettingsFile
from sandbox_sdk.protocol.errors import SandboxError, size_text
from sandbox_server.cli.local import local, needs_server, settings_of

if TYPE_CHECKING:
    from sandbox_server.environments.builds import Builds
    from sandbox_server.environments.catalogue import Catalogue
    from sandbox_server.registry.environments import Environment
    from sandbox_server.runtime.base import BoxSpec

app = typer.Typer(no_args_is_help=True, help="Environments: what boxes have in them.")


class _Opened(NamedTuple):
    builds: Builds
    catalogue: Catalogue
    spec: BoxSpec


@app.command(name="list")
@local
async def list_(*, settings_file: SettingsFile = None, caller: Caller) -> None:
    """List the environments, and what of them is built on this machine."""
    async with _open(settings_file) as opened:
        rows = [await _row(opened, environment) for environment in opened.catalogue.values()]
    heads = ("NAME", "STATE", "SIZE", "MADE", "DESCRIPTION")
    caller.say_table({"environments": rows}, heads, map(_shown, rows))


async def _row(opened: _Opened, environment: Environment) -> dict[str, Any]:
    about: dict[str, Any] = {"name": environment.name, "description": environment.description}
    try:
        found = await opened.builds.status(environment, opened.spec)
    except SandboxError as exc:
        return {**about, "state": "not usable here", "reason": exc.message}
    built = {"bytes": found.bytes, "made_at": found.made_at} if found.state == "built" else {}
    return {**about, "state": found.state, **built}


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    size = made = ""
    if "bytes" in row:
        size = size_text(row["bytes"])
        made = datetime.fromtimestamp(row["made_at"]).isoformat(" ", "minutes")
    return row["name"], row["state"], size, made, row.get("reason") or row["description"]


@app.command()
@local
async def build(
    name: Annotated[str, typer.Argument(help="As `sandbox environments list` has it.")],
    *,
    settings_file: SettingsFile = None,
    caller: Caller,
) -> None:
    """Build an environment now, so that its first session does not wait for it.

    Use the settings of the server (SANDBOX_RUNTIME, SANDBOX_STATE_DIR). Prints the log of the build
    on stderr.
    """
    async with _open(settings_file) as opened:
        environment = opened.catalogue.find(name)

        def tell(line: str) -> None:
            print(escaped(line), file=sys.stderr, flush=True)

        await opened.builds.build(environment, opened.spec, tell)
        row = await _row(opened, environment)
    size = f", {size_text(row['bytes'])}" if "bytes" in row else ""
    caller.say(row, f"{environment.name}: {row['state']}{size}")


@app.command()
@local
async def prune(*, settings_file: SettingsFile = None, caller: Caller) -> None:
    """Remove what was built for environments that are no more, or have changed.

    What running boxes use stays.
    """
    async with _open(settings_file) as opened:
        freed = await opened.builds.prune(opened.catalogue.values(), opened.spec)
    caller.say({"freed_bytes": freed}, f"{size_text(freed)} freed")


@contextlib.asynccontextmanager
async def _open(settings_file: Path | None) -> AsyncIterator[_Opened]:
    with needs_server():
        from sandbox_server.checks import open_runtimes
        from sandbox_server.environments.catalogue import LiveEnvironments, open_builds
        from sandbox_server.registry.live import LiveRegistry
    settings = settings_of(settings_file)
    async with (
        open_runtimes(settings) as (default, *_),
        open_builds(default.runtime, settings.state_folder()) as builds,
    ):
        known = LiveEnvironments(
            LiveRegistry(settings.registry), settings, has_images=default.runtime.has_images
        )
        yield _Opened(builds, known.current(), settings.box_spec(""))
