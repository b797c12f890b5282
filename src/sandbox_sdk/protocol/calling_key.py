"""The id of the API key that a call was made with, while the call is carried out.

Whoever lets a caller in sets it, and a coordinator sends it on to workers. Calls without a key, and
those of a program that makes its own boxes, have none.
"""

from __future__ import annotations

from contextvars import ContextVar
from urllib.parse import quote, unquote

KEY_HEADER = "x-sandbox-key"
KEY_SIGNATURE_HEADER = "x-sandbox-key-signature"
_current: ContextVar[str] = ContextVar("calling_key", default="")


def current() -> str:
    """Empty for none."""
    return _current.get()


def begin(key_id: str) -> None:
    """From here on in this task, and in those that it starts."""
    if key_id != _current.get():
        _current.set(key_id)


def to_header(key_id: str) -> str:
    """As ASCII: the subject of a token may be any text."""
    return quote(key_id, safe="")


def from_header(text: str) -> str:
    return unquote(text, errors="replace")[:128]
