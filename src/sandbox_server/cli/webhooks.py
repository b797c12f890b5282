"""`sandbox webhooks`: what could not be delivered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import Json, SettingsFile
from sandbox_server.cli.registry import from_server

if TYPE_CHECKING:
    from sandbox_server.events.outbox import Delivery, Outbox

app = typer.Typer(
    no_args_is_help=True, help="Webhooks: what was given up after many attempts. On their server."
)


@app.command()
def dead(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most to show.")] = 100,
    settings_file: SettingsFile = None,
    as_json: Json = False,
) -> None:
    """List what was given up, newest first, and why."""
    caller = Caller(json=as_json)

    async def work() -> None:
        found = _outbox(settings_file)
        try:
            _show(caller, found.dead(limit))
        finally:
            found.close()

    caller.run(work())


@app.command()
def retry(settings_file: SettingsFile = None, as_json: Json = False) -> None:
    """Send what was given up once more. A server that runs begins within a second."""
    caller = Caller(json=as_json)

    async def work() -> None:
        found = _outbox(settings_file)
        try:
            count = found.revive()
        finally:
            found.close()
        if caller.json:
            caller.tell({"retried": count})
        else:
            print(f"{count} will be sent again")

    caller.run(work())


def _outbox(settings_file: Any) -> Outbox:
    from_server()
    from sandbox_server.events.outbox import open_outbox
    from sandbox_server.settings import load
    from sandbox_server.settings.file import read_into_environment

    if settings_file is not None:
        read_into_environment(settings_file)
    settings = load()
    return open_outbox(settings.state_folder(), settings.name())


def _show(caller: Caller, found: list[Delivery]) -> None:
    if caller.json:
        caller.tell([_told(each) for each in found])
        return
    rows = []
    for each in found:
        event = json.loads(each.body)
        rows.append(
            [each.webhook, event["kind"], event["at"][:19], escaped(each.thread),
             str(each.attempts), escaped(each.why)]
        )  # fmt: skip
    caller.table(["WEBHOOK", "EVENT", "AT", "THREAD", "ATTEMPTS", "WHY"], rows)


def _told(each: Delivery) -> dict[str, Any]:
    return {
        "webhook": each.webhook,
        "event": json.loads(each.body),
        "attempts": each.attempts,
        "why": each.why,
    }
