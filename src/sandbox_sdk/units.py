"""Durations and sizes as people write them: 90s, 2h, 512m, 1g."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*"
_DURATION = re.compile(rf"{_NUMBER}(ms|s|min|m|h|d)?\s*", re.I)
_SIZE = re.compile(rf"{_NUMBER}([kmgt]?)(?:i?b)?\s*", re.I)


def seconds(text: str) -> float:
    """`90s`, `500ms`, `30m`, `2h`, `1d`; a plain number is seconds. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    value = float(found[1]) * _SECONDS[(found[2] or "s").lower()] if found else math.inf
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a duration: write 90s, 30m, 2h or 1d, or seconds")
    return value


def size_bytes(text: str) -> int:
    """`64k`, `512m`, `1g`, `1.5GiB`; a plain number is bytes. Raises ValueError."""
    found = _SIZE.fullmatch(text)
    value = float(found[1]) * _BYTES[found[2].lower()] if found else math.inf
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a size: write 512m or 2g, or bytes")
    return int(value)


def duration_text(value: float) -> str:
    """The shortest text that seconds() reads as this value."""
    for unit in ("d", "h", "m"):
        if value and value % _SECONDS[unit] == 0:
            return f"{value / _SECONDS[unit]:.0f}{unit}"
    return f"{value:g}s" if value >= 1 or not value else f"{value * 1000:g}ms"


def size_text(value: int) -> str:
    """The shortest text that size_bytes() reads as this value."""
    for unit in ("t", "g", "m", "k"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return str(value)
