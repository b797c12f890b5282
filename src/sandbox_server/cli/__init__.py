"""Server subcommands of `sandbox`. Each imports what it needs when it runs: the command line may be
installed without the server's dependencies."""

from __future__ import annotations

import typer

from sandbox_sdk.cli.caller import subcommand
from sandbox_server.cli import (
    audit,
    config,
    doctor,
    drain,
    environments,
    image,
    init,
    keys,
    policy,
    registry,
    serve,
    webhooks,
)
from sandbox_server.cli.local import local


def add_commands(app: typer.Typer) -> None:
    """Entry point: adds these subcommands to `sandbox`."""
    for here in (serve.serve, init.init, drain.drain):
        app.command()(local(here))
    for anywhere in (doctor.doctor, config.config):
        app.command()(subcommand(anywhere))
    for module in (audit, environments, image, keys, policy, registry, webhooks):
        app.add_typer(module.app, name=module.__name__.rpartition(".")[2])
