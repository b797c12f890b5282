"""`sandbox rm`: the end of sessions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandbox_sdk.cli.caller import SANDBOX_FAILED, Caller, error_body
from sandbox_sdk.cli.options import ApiKey, Json, Url
from sandbox_sdk.protocol.errors import SandboxError


def rm(
    threads: Annotated[list[str], typer.Argument(metavar="T...", help="Thread_ids.")],
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """End the sessions of threads, with their files. One that fails does not keep the others."""
    caller = Caller(url=url, api_key=api_key, json=as_json)
    caller.run(_rm(caller, threads))


async def _rm(caller: Caller, threads: list[str]) -> int:
    told: list[dict[str, Any]] = []
    for thread in threads:
        try:
            async with caller.client(thread) as sandbox:
                result = await sandbox.cleanup()
            told.append({"thread_id": thread, "status": result.status})
        except SandboxError as exc:
            told.append({"thread_id": thread, "error": error_body(exc)})
            if not caller.json:
                caller.complain(f"{thread}: {exc.message}")
    if caller.json:
        caller.tell({"threads": told})
    return SANDBOX_FAILED if any("error" in each for each in told) else 0
