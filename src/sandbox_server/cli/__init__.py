"""Server subcommands of `sandbox`. Each imports what it needs when it runs: the command line may be
installed without the server's dependencies."""

from __future__ import annotations

import typer

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


def add_commands(app: typer.Typer) -> None:
    """Entry point: adds these subcommands to `sandbox`."""
    for command in (serve.serve, init.init, drain.drain, doctor.doctor, config.config):
        app.command()(command)
    app.add_typer(audit.app, name="audit")
    app.add_typer(environments.app, name="environments")
    app.add_typer(image.app, name="image")
    app.add_typer(keys.app, name="keys")
    app.add_typer(policy.app, name="policy")
    app.add_typer(registry.app, name="registry")
    app.add_typer(webhooks.app, name="webhooks")
