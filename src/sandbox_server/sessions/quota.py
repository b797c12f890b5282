"""How many sessions a tenant may have: what the table asks before it makes one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator


class SessionQuota:
    """No limit."""

    @contextlib.asynccontextmanager
    async def one_more(self, _tenant: str) -> AsyncIterator[None]:
        """While a session is made. Raises RateLimited."""
        yield

    def changed(self) -> None:
        """A session has ended."""
