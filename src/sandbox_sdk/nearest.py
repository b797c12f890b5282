"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MOST = 3
_ALIKE = 0.75


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`did you mean SANDBOX_MEMORY_LIMIT?`, or nothing where no known name is near."""
    found = nearest(name, known)
    if not found:
        return ""
    *others, last = found
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def nearest(name: str, known: Collection[str]) -> list[str]:
    """Names that have all words of this one and more; without any, the one spelled most alike."""
    words = set(name.split("_"))
    longer = [each for each in known if words < set(each.split("_"))]
    if longer:
        return longer[:_MOST]
    return difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
