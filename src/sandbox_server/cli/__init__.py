"""Subcommands of `sandbox` that are about a server. What one needs is imported when it runs: the
command line may be installed without a server's libraries."""

from __future__ import annotations

import typer

from sandbox_server.cli import config, doctor, drain, image, policy, serve


def add_commands(app: typer.Typer) -> None:
    """An entry point of the package."""
    for command in (serve.serve, drain.drain, doctor.doctor, config.config):
        app.command()(command)
    app.add_typer(image.app, name="image")
    app.add_typer(policy.app, name="policy")
