"""`sandbox registry`: check and show what is declared in YAML files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import Json
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable

if TYPE_CHECKING:
    from sandbox_server.registry.entries import Registry

app = typer.Typer(
    no_args_is_help=True, help="Agents, tools, prompts and environments, declared in YAML files."
)

_DEFAULT = "Left out: SANDBOX_REGISTRY, and without that only what is built in."
_Folder = Annotated[Path | None, typer.Option("--folder", help=f"The registry. {_DEFAULT}")]


@app.command()
def check(
    folder: Annotated[Path | None, typer.Argument(help=f"The registry. {_DEFAULT}")] = None,
    as_json: Json = False,
) -> None:
    """Read all files and report all that is wrong with them. Exits with 1 if something is."""
    caller = Caller(json=as_json)
    caller.run(_check(caller, folder))


async def _check(caller: Caller, folder: Path | None) -> int:
    from_server()
    from sandbox_server.registry.entries import RegistryError
    from sandbox_server.registry.folder import read_registry

    try:
        registry = read_registry(_chosen(folder))
    except RegistryError as exc:
        if caller.json:
            caller.tell({"problems": [vars(problem) for problem in exc.problems]})
        for problem in () if caller.json else exc.problems:
            print(escaped(str(problem)))
        return 1
    counts = {kind: len(found) for kind, found in registry.by_kind()}
    if caller.json:
        caller.tell({"problems": [], **counts})
    else:
        print(", ".join(f"{number} {kind}" for kind, number in counts.items()) + ": valid")
    return 0


@app.command("list")
def list_(folder: _Folder = None, as_json: Json = False) -> None:
    """List what is declared, with what is built in."""
    caller = Caller(json=as_json)
    caller.run(_list(caller, folder))


async def _list(caller: Caller, folder: Path | None) -> None:
    registry = _read(folder)
    rows = [
        (kind, name, str(getattr(entry, "description", "")).partition("\n")[0])
        for kind, found in registry.by_kind()
        for name, entry in found.items()
    ]
    if caller.json:
        keys = ("kind", "name", "description")
        caller.tell({"entries": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        caller.table(("KIND", "NAME", "DESCRIPTION"), rows)


@app.command()
def show(
    entry: Annotated[str, typer.Argument(metavar="KIND/NAME", help="Such as agents/shell.")],
    folder: _Folder = None,
    as_json: Json = False,
) -> None:
    """Show an entry with everything that is set in it, as YAML."""
    caller = Caller(json=as_json)
    caller.run(_show(caller, entry, folder))


async def _show(caller: Caller, entry: str, folder: Path | None) -> None:
    registry = _read(folder)
    from sandbox_server.registry.entries import known

    kind, _, name = entry.partition("/")
    kind = _kind(kind)
    found = known(name, getattr(registry, kind), kind.removesuffix("s"))
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
        return
    import yaml

    told = found.model_dump(mode="json", exclude_defaults=True)
    for line in yaml.safe_dump(told, sort_keys=False, allow_unicode=True).splitlines():
        print(escaped(line))


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(help="environments, tools, prompts or agents.")],
) -> None:
    """Print the JSON schema of a kind, with which editors complete and check its files."""
    Caller().run(_schema(kind))


async def _schema(kind: str) -> None:
    from_server()
    from sandbox_server.registry.entries import KINDS

    found: dict[str, Any] = KINDS[_kind(kind)].model_json_schema()
    print(
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **found}, indent=2)
    )


def from_server() -> None:
    """Raises RuntimeUnavailable where the server is not installed."""
    try:
        import sandbox_server.registry.folder  # noqa: F401
    except ModuleNotFoundError as exc:
        needs = f"this needs `pip install 'agent-sandbox[server]'` ({exc})"
        raise RuntimeUnavailable(needs) from None


def _chosen(folder: Path | None) -> Path | None:
    from sandbox_server.settings import load

    return folder if folder is not None else load().registry


def _read(folder: Path | None) -> Registry:
    """Raises InvalidRequest."""
    from_server()
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
