"""Options that many subcommands have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from sandbox_sdk.protocol.models import LimitOptions, VolumeOptions
from sandbox_sdk.units import seconds

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="SANDBOX_URL", help="The server; without one, this process."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="SANDBOX_API_KEY", show_envvar=True, help="The key for that server."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Thread = Annotated[str, typer.Argument(metavar="T", help="A thread_id.")]
EnvPairs = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="A variable; repeatable.")
]

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        metavar="FILE",
        help="A file of settings, as `sandbox init` writes it; the environment goes before it.",
    ),
]

Environment = Annotated[
    str | None,
    typer.Option("--environment", help="What a new sandbox has: Python3, Node, Data, or another."),
]
Provider = Annotated[
    str | None, typer.Option("--provider", help="The runtime of a new sandbox: docker, bubblewrap.")
]


@dataclass(frozen=True, kw_only=True)
class NewSandbox:
    """The options of subcommands that make a sandbox, where the thread has none."""

    mount: Annotated[
        list[str] | None,
        typer.Option(
            "--mount",
            "-m",
            metavar="FOLDER[:PATH[:ro|:rw]]",
            help="A folder of this machine to copy into a new sandbox; repeatable. `sandbox diff`"
            " and `sandbox apply` bring it back. With ro or rw the folder itself, without a"
            " server.",
        ),
    ] = None
    volume: Annotated[
        list[str] | None,
        typer.Option(
            "--volume",
            "-v",
            metavar="NAME[:PATH][:ro]",
            help="A folder that outlives the new sandbox, in its /workspace; repeatable. `sandbox"
            " volumes` lists them.",
        ),
    ] = None
    environment: Environment = None
    provider: Provider = None
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="A new sandbox keeps a point before every command, to undo it."
        ),
    ] = False
    network: Annotated[
        str | None,
        typer.Option(
            "--network", help="What a new sandbox can reach: none, allowlist, open, bridge."
        ),
    ] = None
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Memory of a new sandbox: 2g.")
    ] = None
    cpus: Annotated[float | None, typer.Option("--cpus", help="Cores of a new sandbox.")] = None
    pids: Annotated[int | None, typer.Option("--pids", help="Processes in a new sandbox.")] = None
    disk: Annotated[
        str | None, typer.Option("--disk", metavar="SIZE", help="Disk of a new sandbox: 4g.")
    ] = None

    def limits(self) -> LimitOptions:
        """Those that are given."""
        found = {name: getattr(self, name) for name in ("memory", "cpus", "pids", "disk")}
        return cast(
            "LimitOptions", {name: each for name, each in found.items() if each is not None}
        )


def duration_option(meaning: str) -> Any:
    return typer.Option(parser=_duration, metavar="DURATION", help=meaning)


def _duration(text: str | float) -> float:
    """Raises BadParameter."""
    try:
        return seconds(str(text))
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None


def mounts_of(pairs: list[str] | None) -> dict[str, str]:
    """Where each folder is in the sandbox, by itself under its own name. A local name with a colon
    in it is a folder that is there."""
    found = {}
    for pair in pairs or ():
        pair, mode = (pair[:-3], pair[-3:]) if pair.endswith((":ro", ":rw")) else (pair, "")
        folder, colon, path = pair.rpartition(":")
        if not colon or Path(pair).is_dir():
            folder, path = pair, ""
        found[folder] = (path or Path(folder).resolve().name) + mode
    return found


def volumes_of(texts: list[str] | None) -> list[VolumeOptions]:
    """Each NAME[:PATH][:ro|rw]; by itself under its own name."""
    found = []
    for text in texts or ():
        name, *rest = text.split(":")
        mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
        found.append({"name": name, "path": ":".join(rest) or name, "mode": mode})
    return cast("list[VolumeOptions]", found)


def env_of(pairs: list[str] | None) -> dict[str, str]:
    """The variables of K=V options. Raises BadParameter."""
    env = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--env")
        env[name] = value
    return env
