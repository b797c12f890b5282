"""`sandbox keys`: the keys of callers, made, listed, revoked and replaced."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import SettingsFile
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.units import seconds
from sandbox_server.cli.local import local, needs_server, settings_of

if TYPE_CHECKING:
    from sandbox_server.access.key_store import KeyStore
    from sandbox_server.access.keys import Key
    from sandbox_server.access.known_keys import MadeKey

app = typer.Typer(
    no_args_is_help=True,
    help="The keys of callers: kept as digests, with a tenant, scopes and an end.",
)
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `sandbox keys list` shows it.")]
_LONGEST_S = 10 * 365 * 86400.0


@app.command()
@local
async def create(
    *,
    tenant: Annotated[str, typer.Option(help="Whose sandboxes it is for.")],
    name: Annotated[str, typer.Option(help="What it is for, to find it again.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="use: run and write; read: look only; metrics; admin: all [default: use]. May be"
            " given several times."
        ),
    ] = None,
    expires: Annotated[str | None, typer.Option(help="After how long, such as 90d.")] = None,
    settings_file: SettingsFile = None,
    caller: Caller,
) -> None:
    """Make a key and show it, once. Servers take it up within a second."""
    async with _opened(settings_file) as store:
        from sandbox_server.access.known_keys import create

        scopes, expires_s = _scopes(scope or ["use"]), _seconds(expires)
        made = await create(
            store, tenant=_tenant(tenant), name=_name(name), scopes=scopes, now=time.time(),
            expires_s=expires_s,
        )  # fmt: skip
        _show(caller, made)


@app.command("list")
@local
async def list_keys(*, settings_file: SettingsFile = None, caller: Caller) -> None:
    """List all keys, without their texts: those are not kept."""
    async with _opened(settings_file) as store:
        found = sorted(await store.all(), key=lambda key: (key.tenant, key.created_at))
    rows = [
        [key.key_id, escaped(key.tenant), escaped(key.name), ",".join(key.scopes), _state(key),
         _day(key.created_at), _day(key.expires_at)]
        for key in found
    ]  # fmt: skip
    heads = ("ID", "TENANT", "NAME", "SCOPES", "STATE", "CREATED", "EXPIRES")
    caller.say_table([_told(key) for key in found], heads, rows)


@app.command()
@local
async def revoke(key_id: KeyId, *, settings_file: SettingsFile = None, caller: Caller) -> None:
    """End a key at once, for good. Servers refuse it within a second."""
    async with _opened(settings_file) as store:
        from sandbox_server.access.known_keys import revoke

        key = await revoke(store, key_id, now=time.time())
    caller.say(_told(key), f"{key.key_id} of {escaped(key.tenant)} is revoked")


@app.command()
@local
async def rotate(
    key_id: KeyId,
    *,
    overlap: Annotated[
        str, typer.Option(help="For how long the old key goes on, such as 24h.")
    ] = "24h",
    settings_file: SettingsFile = None,
    caller: Caller,
) -> None:
    """Make a key in the place of another, which goes on for a while: no caller fails meanwhile."""
    async with _opened(settings_file) as store:
        from sandbox_server.access.known_keys import rotate

        made = await rotate(store, key_id, overlap_s=_seconds(overlap) or 0.0, now=time.time())
        _show(caller, made)


@contextlib.asynccontextmanager
async def _opened(settings_file: Path | None) -> AsyncIterator[KeyStore]:
    with needs_server():
        from sandbox_server.access.opening import open_key_store
    store = open_key_store(settings_of(settings_file))
    try:
        yield store
    finally:
        await store.close()


def _show(caller: Caller, made: MadeKey) -> None:
    if caller.json:
        caller.tell({**_told(made.key), "key": made.text})
    else:
        print(made.text)
        caller.complain(
            f"key {made.key.key_id} of {made.key.tenant}; it is shown this once and not kept"
        )


def _told(key: Key) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "tenant": key.tenant,
        "name": key.name,
        "scopes": list(key.scopes),
        "state": _state(key),
        "created_at": _moment(key.created_at),
        "expires_at": _moment(key.expires_at),
        "revoked_at": _moment(key.revoked_at),
        "replaced_by": key.replaced_by,
    }


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "valid" if key.is_valid(time.time()) else "expired"


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _day(at: float | None) -> str:
    return "never" if at is None else str(datetime.fromtimestamp(at, UTC).date())


def _tenant(name: str) -> str:
    from sandbox_server.access.keys import TENANT

    if not TENANT.fullmatch(name):
        raise InvalidRequest("a tenant has 1 to 64 characters out of A-Z a-z 0-9 . _ -")
    return name


def _name(text: str) -> str:
    if len(text) > 100 or not text.isprintable():
        raise InvalidRequest("a name has at most 100 characters that can be printed")
    return text


def _scopes(names: list[str]) -> Any:
    from sandbox_server.access.keys import parse_scopes

    try:
        return parse_scopes(each.strip() for name in names for each in name.split(","))
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from None


def _seconds(text: str | None) -> float | None:
    """Raises InvalidRequest."""
    if text is None:
        return None
    try:
        found = seconds(text)
    except ValueError as exc:
        raise InvalidRequest(str(exc)) from None
    if not 0 < found <= _LONGEST_S:
        raise InvalidRequest(f"{text!r}: a key lasts for more than 0 s and at most 10 years")
    return found
