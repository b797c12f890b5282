"""`sandbox egress`: what a session may not reach of what its network allows."""

from __future__ import annotations

from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.models import EgressRules


def egress(
    thread: Annotated[str, typer.Argument(metavar="T", help="A thread_id.")],
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="An address, network or name; counts before --deny."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="An address or a network; 0.0.0.0/0 is everything."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Take all such rules back.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Say what a session may not reach of what its network allows, or show it.

    Give --allow and --deny once for each; they replace the ones before.
    """
    if reset and (allow or deny):
        raise typer.BadParameter("goes without --allow and --deny", param_hint="--reset")
    caller = Caller(url=url, api_key=api_key, json=as_json)
    changes = reset or bool(allow or deny)
    caller.run(_told(caller, thread, allow or [], deny or [], changes=changes))


async def _told(
    caller: Caller, thread: str, allow: list[str], deny: list[str], *, changes: bool
) -> None:
    async with caller.client(thread) as sandbox:
        if changes:
            await sandbox.set_egress(allow=allow, deny=deny)
        session = await sandbox.session()
    rules = session.egress_rules or EgressRules()
    if caller.json:
        caller.tell(rules.model_dump(mode="json"))
        return
    print(f"{thread}: network {session.limits.network}")
    for name, entries in (("allow", rules.allow), ("deny", rules.deny)):
        for entry in entries:
            print(f"  {name} {entry}")
