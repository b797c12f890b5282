"""Prices, for the cost of what was used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sandbox_server.usage.figures import Figures

GB = 1e9
_HOUR_S = 3600.0
UNITS: Mapping[str, Callable[[Figures], float]] = {
    "command": lambda used: used.commands,
    "cpu_second": lambda used: used.cpu_us / 1e6,
    "session_hour": lambda used: used.session_ms / 1000 / _HOUR_S,
    "gb_hour_memory": lambda used: used.memory_byte_s / GB / _HOUR_S,
    "gb_in": lambda used: used.bytes_in / GB,
    "gb_out": lambda used: used.bytes_out / GB,
    "gb_egress": lambda used: used.egress_bytes / GB,
    "gb_day_storage": lambda used: used.storage / GB,
}
"""What has a price, and how much of it figures have; storage: those of one day."""
_CURRENCY = "currency"


@dataclass(frozen=True)
class Prices:
    by_unit: Mapping[str, float] = field(default_factory=dict)
    currency: str | None = None

    @classmethod
    def parse(cls, text: str) -> Prices:
        """`cpu_second=0.00001,gb_out=0.05,currency=EUR`. Raises ValueError."""
        found: dict[str, float] = {}
        currency = None
        for part in filter(None, (each.strip() for each in text.split(","))):
            name, _, value = (each.strip() for each in part.partition("="))
            if name == _CURRENCY:
                if not (value.isalpha() and len(value) == 3):
                    raise ValueError(f"{part!r}: a currency has three letters, such as EUR")
                currency = value.upper()
                continue
            if name not in UNITS:
                raise ValueError(f"{name!r} has no price: there are {', '.join(UNITS)}, currency")
            found[name] = _price(part, value)
        return cls(found, currency)

    def cost(self, used: Figures) -> float | None:
        """None without prices."""
        if not self.by_unit:
            return None
        return sum(price * UNITS[name](used) for name, price in self.by_unit.items())


def _price(part: str, value: str) -> float:
    try:
        price = float(value)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise ValueError(f"{part!r}: a price is a number, such as cpu_second=0.00001")
    return price
