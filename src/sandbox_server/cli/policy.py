"""`sandbox policy`: check a command against the policy, and validate rule files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable

if TYPE_CHECKING:
    from sandbox_sdk.protocol.models import Verdict
    from sandbox_server.policy.policy import Policy

DRY_RUN_THREAD = "policy-check"

app = typer.Typer(no_args_is_help=True, help="What commands may run.")


@app.command()
def check(
    command: Annotated[str, typer.Argument(help="Bash source, as execute takes it.")],
    policy: Annotated[
        str | None,
        typer.Option(help="Check here, against a built-in set or a rule file; uses no server."),
    ] = None,
    thread: Annotated[
        str, typer.Option(help="The thread it would run in; its environment decides the policy.")
    ] = DRY_RUN_THREAD,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Say whether a command may run, without running it. Exits with 1 if it may not."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_check(caller, command, thread, policy))


async def _check(caller: Caller, command: str, thread: str, policy: str | None) -> int:
    if policy is not None:
        verdict = judge(command, policy)
    else:
        async with caller.client(thread) as sandbox:
            verdict = await sandbox.check(command)
    if caller.json:
        caller.tell(verdict.model_dump(mode="json"))
    else:
        print(explain(verdict))
    return 0 if verdict.allowed else 1


@app.command()
def validate(
    file: Annotated[str, typer.Argument(help="A rule file, or the name of a built-in set.")],
    as_json: Json = False,
) -> None:
    """Read a rule file and check its examples; report the line of an error."""
    caller = Caller(json=as_json)
    caller.run(_validate(caller, file))


async def _validate(caller: Caller, file: str) -> None:
    policy = _policy(file)
    if caller.json:
        caller.tell({"name": policy.name, "mode": policy.mode.value, "rules": len(policy.rules)})
    else:
        print(f"{escaped(policy.name)}: {policy.mode}, {len(policy.rules)} rules, valid")


def judge(command: str, policy: str) -> Verdict:
    """The verdict of a local rule set. Raises InvalidRequest if it cannot be read."""
    read = _policy(policy)
    from sandbox_server.service.gate import verdict_of

    return verdict_of(*read.explain(command))


def _policy(file: str) -> Policy:
    try:
        from sandbox_server.policy.policy import Policy
    except ModuleNotFoundError as exc:
        needs = f"this needs `pip install 'agent-sandbox[server]'` ({exc})"
        raise RuntimeUnavailable(needs) from None
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
