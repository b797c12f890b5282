"""`sandbox registry`: check and show what is declared in YAML files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.cli.local import local, needs_server

if TYPE_CHECKING:
    from sandbox_server.registry.entries import Registry

app = typer.Typer(
    no_args_is_help=True, help="Agents, tools, prompts and environments, declared in YAML files."
)

_DEFAULT = "Left out: SANDBOX_REGISTRY, and without that only what is built in."
_Folder = Annotated[Path | None, typer.Option("--folder", help=f"The registry. {_DEFAULT}")]


@app.command()
@local
async def check(
    folder: Annotated[Path | None, typer.Argument(help=f"The registry. {_DEFAULT}")] = None,
    *,
    caller: Caller,
) -> int:
    """Read all files and report all that is wrong with them. Exits with 1 if something is."""
    with needs_server():
        from sandbox_server.registry.entries import RegistryError
        from sandbox_server.registry.folder import read_registry

    try:
        registry = read_registry(_chosen(folder))
    except RegistryError as exc:
        document = {"problems": [vars(problem) for problem in exc.problems]}
        caller.say(document, "\n".join(escaped(str(problem)) for problem in exc.problems))
        return 1
    counts = {kind: len(found) for kind, found in registry.by_kind()}
    told = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    caller.say({"problems": [], **counts}, f"{told}: valid")
    return 0


@app.command("list")
@local
def list_(*, folder: _Folder = None, caller: Caller) -> None:
    """List what is declared, with what is built in."""
    registry = _read(folder)
    rows = [
        (kind, name, str(getattr(entry, "description", "")).partition("\n")[0])
        for kind, found in registry.by_kind()
        for name, entry in found.items()
    ]
    keys = ("kind", "name", "description")
    document = {"entries": [dict(zip(keys, row, strict=True)) for row in rows]}
    caller.say_table(document, ("KIND", "NAME", "DESCRIPTION"), rows)


@app.command()
@local
def show(
    entry: Annotated[str, typer.Argument(metavar="KIND/NAME", help="Such as agents/shell.")],
    *,
    folder: _Folder = None,
    caller: Caller,
) -> None:
    """Show an entry with everything that is set in it, as YAML."""
    registry = _read(folder)
    from sandbox_server.registry.entries import known

    kind, _, name = entry.partition("/")
    kind = _kind(kind)
    found = known(name, getattr(registry, kind), kind.removesuffix("s"))
    if caller.json:
        caller.tell(found)
        return
    import yaml

    told = found.model_dump(mode="json", exclude_defaults=True)
    for line in yaml.safe_dump(told, sort_keys=False, allow_unicode=True).splitlines():
        print(escaped(line))


@app.command()
@partial(local, without=("url", "api_key", "json"))
def schema(
    kind: Annotated[str, typer.Argument(help="environments, tools, prompts or agents.")],
    *,
    caller: Caller,
) -> None:
    """Print the JSON schema of a kind, with which editors complete and check its files."""
    with needs_server():
        from sandbox_server.registry.entries import KINDS

    found: dict[str, Any] = KINDS[_kind(kind)].model_json_schema()
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    caller.say(document, json.dumps(document, indent=2))


def _chosen(folder: Path | None) -> Path | None:
    from sandbox_server.settings import load

    return folder if folder is not None else load().registry


def _read(folder: Path | None) -> Registry:
    """Raises InvalidRequest."""
    with needs_server():
        from sandbox_server.registry.entries import RegistryError
        from sandbox_server.registry.folder import read_registry

    try:
        return read_registry(_chosen(folder))
    except RegistryError as exc:
        raise InvalidRequest(str(exc)) from None


def _kind(name: str) -> str:
    """The name of a folder, also in the singular. Raises InvalidRequest."""
    from sandbox_server.registry.entries import KINDS, near

    for kind in KINDS:
        if name in (kind, kind.removesuffix("s")):
            return kind
    raise InvalidRequest(f"no kind {name!r}{near(name, KINDS)}; there are: {', '.join(KINDS)}")
