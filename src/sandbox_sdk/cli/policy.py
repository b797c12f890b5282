"""`sandbox policy`: what would the policy say of this command, and is this rule file in order?"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import ExecuteRequest, Verdict

DRY_RUN_THREAD = "policy-check"

app = typer.Typer(no_args_is_help=True, help="What commands may run.")


@app.command()
def check(
    command: Annotated[str, typer.Argument(help="Bash source, as execute takes it.")],
    policy: Annotated[
        str | None,
        typer.Option(help="Judge here, by a built-in set or a rule file; asks no server."),
    ] = None,
    thread: Annotated[
        str, typer.Option(help="The thread it would run in: its environment has the policy.")
    ] = DRY_RUN_THREAD,
    url: Annotated[str | None, typer.Option(help="The server; else SANDBOX_URL.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole verdict.")] = False,
) -> None:
    """Say whether a command may run, without running it. Exits with 1 where it may not."""
    try:
        verdict = judge(command, policy) if policy else asyncio.run(ask(command, thread, url=url))
    except (SandboxError, ValueError) as exc:
        typer.echo(f"sandbox: {exc}", err=True)
        raise typer.Exit(2) from None
    typer.echo(verdict.model_dump_json(indent=2) if json else explain(verdict))
    raise typer.Exit(0 if verdict.allowed else 1)


@app.command()
def validate(
    file: Annotated[str, typer.Argument(help="A rule file, or the name of a built-in set.")],
) -> None:
    """Read a rule file and check its examples. Exits with 2 and the line where it is wrong."""
    from sandbox_server.policy.policy import Policy

    try:
        policy = Policy.read(file)
    except ValueError as exc:
        typer.echo(f"sandbox: {exc}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{policy.name}: {policy.mode}, {len(policy.rules)} rules, in order")


async def ask(command: str, thread: str, *, url: str | None = None) -> Verdict:
    """The verdict of a server. Nothing runs and no session is made. Raises SandboxError."""
    async with RemoteBackend(url) as backend:
        return await backend.check(ExecuteRequest(thread_id=thread, command=command))


def judge(command: str, policy: str) -> Verdict:
    """The verdict of a rule set here. Raises ValueError where it cannot be read."""
    from sandbox_server.gate import verdict_of
    from sandbox_server.policy.policy import Policy

    return verdict_of(Policy.read(policy).judge(command))


def explain(verdict: Verdict) -> str:
    """A verdict for people."""
    lines = [f"{'allowed' if verdict.allowed else 'REJECTED'} by {verdict.policy} ({verdict.mode})"]
    if verdict.command:
        where = f"characters {verdict.command.start} to {verdict.command.end}"
        lines.append(f"  rule     {verdict.rule}")
        lines.append(f"  command  {verdict.command.text}  ({where})")
        lines.append(f"  because  {verdict.reason}")
        if verdict.alternative:
            lines.append(f"  instead  {verdict.alternative}")
    if verdict.doubts:
        lines.append(f"  doubts   {', '.join(verdict.doubts)}")
    for command in verdict.commands:
        words = " ".join("…" if word is None else word for word in command.argv)
        via = f"  (by {', '.join(command.via)})" if command.via else ""
        lines.append(f"  runs     {words}{via}")
    return "\n".join(lines)
