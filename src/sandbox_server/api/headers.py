"""Request headers as the server received them: bytes, with names in lower case."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name; empty without one."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


def announced_bytes(scope: Scope) -> int:
    """The Content-Length of a request; 0 without one."""
    length = header(scope, b"content-length")
    return int(length) if length.isdigit() else 0


def is_form(scope: Scope) -> bool:
    """Whether a body is a form with parts, as uploads are."""
    return header(scope, b"content-type").lower().startswith(b"multipart/form-data")
