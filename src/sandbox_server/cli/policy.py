"""`sandbox policy`: check a command against the policy, and validate rule files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_sdk.cli.caller import Caller, subcommand
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.cli.local import local, needs_server

if TYPE_CHECKING:
    from sandbox_sdk.protocol.models import Verdict
    from sandbox_server.policy.policy import Policy

DRY_RUN_THREAD = "policy-check"

app = typer.Typer(no_args_is_help=True, help="What commands may run.")


@app.command()
@subcommand
async def check(
    command: Annotated[str, typer.Argument(help="Bash source, as execute takes it.")],
    *,
    policy: Annotated[
        str | None,
        typer.Option(help="Check here, against a built-in set or a rule file; uses no server."),
    ] = None,
    thread: Annotated[
        str, typer.Option(help="The thread it would run in; its environment decides the policy.")
    ] = DRY_RUN_THREAD,
    caller: Caller,
) -> int:
    """Say whether a command may run, without running it. Exits with 1 if it may not."""
    if policy is not None:
        verdict = judge(command, policy)
    else:
        async with caller.client(thread) as sandbox:
            verdict = await sandbox.check(command)
    caller.say(verdict, explain(verdict))
    return 0 if verdict.allowed else 1


@app.command()
@local
def validate(
    file: Annotated[str, typer.Argument(help="A rule file, or the name of a built-in set.")],
    *,
    caller: Caller,
) -> None:
    """Read a rule file and check its examples; report the line of an error."""
    policy = _policy(file)
    caller.say(
        {"name": policy.name, "mode": policy.mode.value, "rules": len(policy.rules)},
        f"{escaped(policy.name)}: {policy.mode}, {len(policy.rules)} rules, valid",
    )


def judge(command: str, policy: str) -> Verdict:
    """The verdict of a local rule set. Raises InvalidRequest if it cannot be read."""
    read = _policy(policy)
    from sandbox_server.service.gate import verdict_of

    return verdict_of(*read.explain(command))


def _policy(file: str) -> Policy:
    with needs_server():
        from sandbox_server.policy.policy import Policy
    try:
        return Policy.read(file)
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from None


def explain(verdict: Verdict) -> str:
    """A verdict as text for people."""
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
    return "\n".join(map(escaped, lines))
