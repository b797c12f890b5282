"""`sandbox usage`."""

from __future__ import annotations

import csv
import sys
from datetime import datetime
from typing import Annotated, cast

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.protocol.errors import size_text
from sandbox_sdk.protocol.models import UsageBy, UsageReport, UsageRow

_NAMES = {"day": ("day",), "thread": ("thread_id",), "session": ("thread_id", "session_id")}
_HEADS = ("COMMANDS", "CPU", "RAN", "LIVED", "MEMORY", "IN", "OUT", "EGRESS", "STORED", "COST")
_DAY = ["%Y-%m-%d"]


async def usage(
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="day, thread, session or total.")
    ] = "day",
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="T", help="Of this thread alone.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", formats=_DAY, help="The first day, of UTC.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", formats=_DAY, help="The last day; today.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with all figures.")] = False,
    caller: Caller,
) -> None:
    """Tell what was used, by day, thread or session: commands, CPU time, memory, bytes, storage.

    Without --since, of the last 30 days.
    """
    if by not in (*_NAMES, "total"):
        raise typer.BadParameter("--by is one of day, thread, session, total")
    if as_csv and caller.json:
        raise typer.BadParameter("--csv and --json do not go together")
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.usage(
            by=cast("UsageBy", by),
            thread_id=thread,
            since=None if since is None else since.date(),
            until=None if until is None else until.date(),
        )
    if as_csv:
        _write_csv(found)
    else:
        names = _NAMES.get(by, ())
        heads = (*(name.removesuffix("_id").upper() for name in names), *_HEADS)
        caller.say_table(found, heads, (_row(names, each, found.currency) for each in found.rows))
    if found.truncated:
        caller.complain("there are more rows: name fewer days, or a thread")
    if found.unreachable:
        silent = ", ".join(found.unreachable)
        caller.complain(f"no answer from {silent}: what it did last may be missing")


def _write_csv(found: UsageReport) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [*UsageRow.model_fields, "currency"]
    writer.writerow(names)
    for each in found.rows:
        fields = {**each.model_dump(mode="json"), "currency": found.currency}
        writer.writerow(["" if fields[name] is None else fields[name] for name in names])


def _row(names: tuple[str, ...], each: UsageRow, currency: str | None) -> tuple[str, ...]:
    return (
        *(str(getattr(each, name) or "-") for name in names),
        str(each.commands),
        f"{each.cpu_seconds:.2f} s",
        f"{each.command_seconds:.1f} s",
        f"{each.session_seconds:.0f} s",
        size_text(each.memory_peak_bytes),
        size_text(each.bytes_in),
        size_text(each.bytes_out),
        size_text(each.egress_bytes),
        "-" if each.storage_bytes is None else size_text(each.storage_bytes),
        "-" if each.cost is None else f"{each.cost:.4f} {currency or ''}".strip(),
    )
