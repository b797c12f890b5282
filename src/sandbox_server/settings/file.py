"""Settings files: lines of NAME=value, as systemd's EnvironmentFile= and a shell read them."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from sandbox_sdk.protocol.errors import InvalidRequest


def read_into_environment(path: Path) -> None:
    """Set the variables of a file that are not set yet, and the registry beside it. Raises
    InvalidRequest."""
    try:
        with path.open(encoding="utf-8") as stream:
            bindings = list(parse_stream(stream))
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or "not UTF-8"
        raise InvalidRequest(f"the settings file {path} cannot be read: {why}") from None
    for binding in bindings:
        name, value = _variable(path, binding)
        if name:
            os.environ.setdefault(name, value)
    beside = path.absolute().parent / "registry"
    if beside.is_dir():
        os.environ.setdefault("SANDBOX_REGISTRY", str(beside))


def _variable(path: Path, binding: Binding) -> tuple[str, str]:
    """Name and value of a line; empty for a comment."""
    if binding.error or (binding.key is not None and binding.value is None):
        raise InvalidRequest(f"{path}, line {binding.original.line}: write NAME=value")
    return binding.key or "", binding.value or ""
