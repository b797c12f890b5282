"""Says which extra is missing, where an optional package is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of a module that needs an extra. Where that module is imported by another
    of ours, the extra of the outer one counts, which includes it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = exc.__cause__ if isinstance(exc.__cause__, ModuleNotFoundError) else exc
        raise ModuleNotFoundError(
            f"{missing.msg}: pip install 'agent-sandbox[{extra}]'", name=missing.name
        ) from missing
