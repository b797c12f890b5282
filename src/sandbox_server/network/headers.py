"""Headers that the proxy adds to requests of a box, with values that never enter the box."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

_PLACEHOLDER = re.compile(r"\{(env|file):([^{}]+)\}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_LONGEST = 8192
FRAMING = frozenset(
    ("connection", "content-length", "host", "keep-alive", "proxy-authorization", "te",
     "transfer-encoding", "upgrade")
)  # fmt: skip
"""Not for operators to set: they say where a message ends, and to whom it goes."""


class SecretMissing(Exception):
    """The message names the variable or the file, never a value."""


class Secret:
    """A header value. It is read again for each request, so that a file can be replaced, and shows
    up in no repr."""

    def __init__(self, read: Callable[[], str], about: str) -> None:
        self._read = read
        self._about = about

    def __repr__(self) -> str:
        return f"<Secret {self._about}>"

    def reveal(self) -> bytes:
        """Raises SecretMissing."""
        value = self._read()
        if len(value) > _LONGEST or not _VALUE.fullmatch(value):
            raise SecretMissing(f"{self._about} is not one line of printable ASCII")
        return value.encode("ascii")


def header_name(name: str) -> str:
    """In lower case. Raises ValueError."""
    if not _NAME.fullmatch(name) or name.lower() in FRAMING:
        raise ValueError(f"{name!r} is not a header that can be added")
    return name.lower()


def secret(text: str, *, folder: Path = Path(), environ: Mapping[str, str] | None = None) -> Secret:
    """`Bearer {env:TOKEN}` or `{file:token.txt}`; a file is relative to folder. Raises ValueError
    if nothing is read from elsewhere, SecretMissing if that is not there."""
    sources = _PLACEHOLDER.findall(text)
    if not sources:
        raise ValueError("a secret does not belong into this file: write {env:NAME} or {file:PATH}")
    known = dict(os.environ if environ is None else environ)
    # Of the environment only what is named is kept.
    known = {name: known[name] for kind, name in sources if kind == "env" and name in known}

    def read() -> str:
        return _PLACEHOLDER.sub(lambda found: _value(found[1], found[2], folder, known), text)

    made = Secret(read, " and ".join(f"{kind} {name}" for kind, name in sources))
    made.reveal()
    return made


def fixed(value: str, about: str) -> Secret:
    """One that is known already."""
    return Secret(lambda: value, about)


def _value(kind: str, name: str, folder: Path, environ: Mapping[str, str]) -> str:
    if kind == "env":
        if not environ.get(name):
            raise SecretMissing(f"the environment variable {name} is not set")
        return environ[name].strip()
    try:
        return (folder / name).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or "not ASCII"
        raise SecretMissing(f"the file {name} cannot be read: {why}") from None
