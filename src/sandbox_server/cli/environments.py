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
from sandbox_sdk.cli.options import Json, SettingsFile
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, size_text

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
def list_(settings_file: SettingsFile = None, as_json: Json = False) -> None:
    """List the environments, and what of them is built on this machine."""
    caller = Caller(json=as_json)
    caller.run(_list(caller, settings_file))


async def _list(caller: Caller, settings_file: Path | None) -> None:
    async with _open(settings_file) as opened:
        rows = [await _row(opened, environment) for environment in opened.catalogue.values()]
    if caller.json:
        caller.tell({"environments": rows})
        return
    heads = ("NAME", "STATE", "SIZE", "MADE", "DESCRIPTION")
    caller.table(heads, (_shown(row) for row in rows))


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
def build(
    name: Annotated[str, typer.Argument(help="As `sandbox environments list` has it.")],
    settings_file: SettingsFile = None,
    as_json: Json = False,
) -> None:
    """Build an environment now, so that its first session does not wait for it.

    Use the settings of the server (SANDBOX_RUNTIME, SANDBOX_STATE_DIR). Prints the log of the build
    on stderr.
    """
    caller = Caller(json=as_json)
    caller.run(_build(caller, name, settings_file))


async def _build(caller: Caller, name: str, settings_file: Path | None) -> None:
    async with _open(settings_file) as opened:
        environment = opened.catalogue.find(name)

        def tell(line: str) -> None:
            print(escaped(line), file=sys.stderr, flush=True)

        await opened.builds.build(environment, opened.spec, tell)
        row = await _row(opened, environment)
    if caller.json:
        caller.tell(row)
    else:
        size = f", {size_text(row['bytes'])}" if "bytes" in row else ""
        print(f"{environment.name}: {row['state']}{size}")


@app.command()
def prune(settings_file: SettingsFile = None, as_json: Json = False) -> None:
    """Remove what was built for environments that are no more, or have changed.

    What running boxes use stays.
    """
    caller = Caller(json=as_json)
    caller.run(_prune(caller, settings_file))


async def _prune(caller: Caller, settings_file: Path | None) -> None:
    async with _open(settings_file) as opened:
        freed = await opened.builds.prune(opened.catalogue.values(), opened.spec)
    if caller.json:
        caller.tell({"freed_bytes": freed})
    else:
        print(f"{size_text(freed)} freed")


@contextlib.asynccontextmanager
async def _open(settings_file: Path | None) -> AsyncIterator[_Opened]:
    try:
        from sandbox_server.checks import open_runtimes
        from sandbox_server.environments.catalogue import LiveEnvironments, open_builds
        from sandbox_server.registry.live import LiveRegistry
        from sandbox_server.settings import load
        from sandbox_server.settings.file import read_into_environment
    except ModuleNotFoundError as exc:
        lacks = f"this needs `pip install 'agent-sandbox[server]'` ({exc})"
        raise RuntimeUnavailable(lacks) from None
    if settings_file is not None:
        read_into_environment(settings_file)
    settings = load()
    async with (
        open_runtimes(settings) as (default, *_),
        open_builds(default.runtime, settings.state_folder()) as builds,
    ):
        known = LiveEnvironments(
            LiveRegistry(settings.registry), settings, has_images=default.runtime.has_images
        )
        yield _Opened(builds, known.current(), settings.box_spec(""))
