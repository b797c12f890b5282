"""`sandbox webhooks`: what could not be delivered."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import SettingsFile
from sandbox_server.cli.local import local, needs_server, settings_of

if TYPE_CHECKING:
    from sandbox_server.events.outbox import Delivery, Outbox

app = typer.Typer(
    no_args_is_help=True, help="Webhooks: what was given up after many attempts. On their server."
)


@app.command()
@local
def dead(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most to show.")] = 100,
    settings_file: SettingsFile = None,
    caller: Caller,
) -> None:
    """List what was given up, newest first, and why."""
    with _opened(settings_file) as outbox:
        found = outbox.dead(limit)
    heads = ("WEBHOOK", "EVENT", "AT", "THREAD", "ATTEMPTS", "WHY")
    caller.say_table([_told(each) for each in found], heads, map(_row, found))


@app.command()
@local
def retry(*, settings_file: SettingsFile = None, caller: Caller) -> None:
    """Send what was given up once more. A server that runs begins within a second."""
    with _opened(settings_file) as outbox:
        count = outbox.revive()
    caller.say({"retried": count}, f"{count} will be sent again")


@contextlib.contextmanager
def _opened(settings_file: Path | None) -> Iterator[Outbox]:
    with needs_server():
        from sandbox_server.events.outbox import open_outbox
    settings = settings_of(settings_file)
    with contextlib.closing(open_outbox(settings.state_folder(), settings.name())) as outbox:
        yield outbox


def _row(each: Delivery) -> list[str]:
    event = json.loads(each.body)
    thread, why = escaped(each.thread), escaped(each.why)
    return [each.webhook, event["kind"], event["at"][:19], thread, str(each.attempts), why]


def _told(each: Delivery) -> dict[str, Any]:
    return {
        "webhook": each.webhook,
        "event": json.loads(each.body),
        "attempts": each.attempts,
        "why": each.why,
    }
