"""`sandbox health`: how the server is doing."""

from __future__ import annotations

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.options import ApiKey, Json, Url


def health(url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Ask the server how it is doing. Leaves with 1 where it is unhealthy."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_health(caller))


async def _health(caller: Caller) -> int:
    async with caller.sandboxes() as sandboxes:
        found = await sandboxes.health()
    if caller.json:
        caller.tell(found.model_dump(mode="json"))
    else:
        checks = {f"check: {name}": told for name, told in found.checks.items()}
        facts = {**found.model_dump(exclude={"checks"}), **checks}
        caller.table((), ((name, str(value)) for name, value in facts.items()))
    return 1 if found.status == "unhealthy" else 0
