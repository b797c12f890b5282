"""How many sessions and commands in the background a tenant and a key may have: what the table asks
before there is one more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sandbox_server.sessions.live import Key


class SessionQuota:
    """No limit."""

    @contextlib.asynccontextmanager
    async def one_more(self, _key: Key, _made_by: str) -> AsyncIterator[None]:
        """While the session of a thread is made. made_by: the id of the caller's API key. Raises
        RateLimited."""
        yield

    def changed(self) -> None:
        """A session has ended."""

    async def begin_command(
        self,
        _tenant: str,
        _command_id: str,
        *,
        key_id: str,  # noqa: ARG002
        at_any_rate: bool = False,  # noqa: ARG002
    ) -> bool:
        """Whether a command in the background counts, until end_command(). Raises RateLimited,
        unless at_any_rate."""
        return False

    def end_command(self, command_id: str) -> None: ...

    def bounds_key(self, _key_id: str) -> bool:
        """Whether the commands of a key count."""
        return False
