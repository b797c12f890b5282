"""The methods of clients about usage."""

from __future__ import annotations

from datetime import date

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.models import UsageBy, UsageReport

METHODS = ("usage",)


class UsageMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def usage(
        self,
        *,
        by: UsageBy = "day",
        since: date | None = None,
        until: date | None = None,
        thread_id: str | None = None,
    ) -> UsageReport:
        """What all sandboxes of this server and key, or of this machine's user, have used.

        by: "day", "thread", "session" or "total". since, until: days of UTC, both included; by
            default the last 30 days. thread_id: of this thread alone. `cost` is there where the
            server has prices.
        """
        sandboxes = await self._connection.opened()
        return await sandboxes.usage(by=by, since=since, until=until, thread_id=thread_id)
