"""`sandbox init`: a settings file and a systemd unit to start from."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.cli.local import needs_server
from sandbox_server.cli.systemd import unit, unit_name

if TYPE_CHECKING:
    from sandbox_server.settings import Entry

_HEAD = """\
# Settings of agent-sandbox. A line that is commented out shows the default, or an example where
# there is none. Sizes are 512m or 2g, durations 90s, 30m or 2h. Read by `sandbox serve --settings
# FILE`, by EnvironmentFile= of systemd, and by `set -a; . FILE`.
"""


async def init(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")] = Path(),
    *,
    role: Annotated[
        Literal["standalone", "worker", "coordinator"],
        typer.Option(help="A part of a fleet, or all in one."),
    ] = "standalone",
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are there already.")
    ] = False,
    caller: Caller,
) -> None:
    """Write a settings file, with every setting and its meaning, and a systemd unit."""
    folder = folder.absolute()
    name = "sandbox" if role == "standalone" else role
    settings, service = folder / f"{name}.env", folder / unit_name(role)
    with needs_server("a server"):
        text = settings_file(role)
    for path in (settings, service):
        if path.exists() and not force:
            raise InvalidRequest(f"{path} is there already; --force replaces it")
    program = Path(sys.executable).with_name("sandbox")
    _write(settings, text, mode=0o600)  # It will contain keys.
    _write(service, unit(role, program=program, settings=settings), mode=0o644)
    written = {"settings": str(settings), "unit": str(service)}
    caller.say(written, _next_steps(settings, service))


def _write(path: Path, text: str, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def settings_file(role: str) -> str:
    """Every setting, commented out, with its meaning."""
    from sandbox_server.settings import entries

    parts = [_HEAD]
    for topic, group in groupby(entries(), key=lambda entry: entry.about.topic):
        parts.append(f"\n# --- {topic} ---\n")
        parts += [_lines(entry, role) for entry in group]
    return "\n".join(parts)


def _lines(entry: Entry, role: str) -> str:
    about = entry.about
    meaning = entry.meaning + (f" Default: {about.otherwise}." if about.otherwise else "")
    if about.runtimes:
        meaning += f" Runtime: {', '.join(about.runtimes)}."
    comment = textwrap.fill(
        meaning, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
    if entry.name == "role" and role != "standalone":
        return f"{comment}\n{entry.variable}={role}\n"
    value = entry.default or about.example
    return f"{comment}\n# {entry.variable}={shlex.quote(value)}\n"


def _next_steps(settings: Path, service: Path) -> str:
    file, unit_file = shlex.quote(str(settings)), shlex.quote(str(service))
    return f"""\
wrote {settings} and {service}

Next:
  edit {file}
  try it:               sandbox serve --settings {file} --print-config
                        sandbox serve --settings {file}
  run it as a service:  sudo systemctl enable --now {unit_file}
                        journalctl -fu {service.stem}"""
