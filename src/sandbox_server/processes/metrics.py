"""The metrics of all processes of a server, whichever of them is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from sandbox_server.private import short_path

if TYPE_CHECKING:
    from sandbox_server.metrics.exposition import Exposition

_ANSWER_S = 2.0
"""How long a process may take; one that is being restarted does not answer."""


def of_all(own: Exposition, sockets: Sequence[Path], index: int) -> Exposition:
    """sockets: at which the processes reach each other. index: of this one."""

    async def told() -> bytes:
        from sandbox_server.metrics.exposition import joined  # Slow to import.

        others = (own() if number == index else _ask(path) for number, path in enumerate(sockets))
        return joined(await asyncio.gather(*others))

    return told


async def _ask(path: Path) -> bytes | None:
    """None if the process does not answer."""
    try:
        with short_path(path) as short:
            transport = httpx.AsyncHTTPTransport(uds=str(short), verify=False)
            async with httpx.AsyncClient(transport=transport, timeout=_ANSWER_S) as http:
                answer = await http.get("http://process/metrics")
                return answer.content if answer.is_success else None
    except (httpx.HTTPError, OSError):
        return None
