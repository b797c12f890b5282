"""Where the ledgers of a fleet come together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import date

from sandbox_server.usage.figures import Figures, Row


class SharedUsage(ABC):
    """Every method may raise RuntimeUnavailable."""

    @abstractmethod
    async def publish(self, ledger_id: str, rows: Sequence[tuple[str, Row]]) -> None:
        """Rows as they are now; the same again changes nothing."""

    @abstractmethod
    async def others(
        self, ledger_id: str, accounts: Sequence[str], day: date
    ) -> dict[str, Figures]:
        """What all other ledgers have of tenants and keys."""
