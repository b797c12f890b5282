"""How many sessions a tenant may have: what the table asks before it makes one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sandbox_server.sessions.live import Key


class SessionQuota:
    """No limit."""

    @contextlib.asynccontextmanager
    async def one_more(self, _key: Key) -> AsyncIterator[None]:
        """While the session of a thread is made. Raises RateLimited."""
        yield

    def changed(self) -> None:
        """A session has ended."""
