"""The webhooks of an operator, from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import HappeningKind
from sandbox_server.events.log import Event
from sandbox_server.network.hosts import parse_address
from sandbox_server.registry import yaml_lines
from sandbox_server.registry.yaml_lines import YamlError

_LEAST_SECRET = 16
_BY_DEFAULT: tuple[HappeningKind, ...] = (
    "session.created", "session.restored", "session.resumed", "session.ended", "session.lost",
    "checkpoint.created", "limit.reached", "budget.near",
)  # fmt: skip
"""All but the end of every command."""


@dataclass(frozen=True, kw_only=True)
class Webhook:
    name: str
    url: str
    secret: str
    kinds: frozenset[HappeningKind]
    tenants: frozenset[str] | None
    """None: of all."""
    private: bool
    """Whether its host may have an address that is not public."""

    def __repr__(self) -> str:
        return f"<Webhook {self.name}>"

    def is_for(self, tenant: str) -> bool:
        return self.tenants is None or tenant in self.tenants

    def wants(self, event: Event) -> bool:
        return event.kind in self.kinds and self.is_for(event.tenant)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    url: str = Field(max_length=2000)
    secret: str | None = None
    secret_file: Path | None = None
    kinds: tuple[HappeningKind, ...] = _BY_DEFAULT
    tenants: tuple[str, ...] | None = None
    private: bool = False


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    webhooks: tuple[_Entry, ...] = Field(max_length=100)


def read_webhooks(path: Path | None) -> dict[str, Webhook]:
    """By name. Raises InvalidRequest, whose message has no secret."""
    if path is None:
        return {}
    try:
        with path.open("rb") as stream:
            located = yaml_lines.parse(stream.read(yaml_lines.MAX_BYTES + 1))
        read = _File.model_validate(located.value)
    except OSError as exc:
        raise InvalidRequest(
            f"SANDBOX_WEBHOOKS: {path} cannot be read: {exc.strerror}; name a YAML file"
        ) from None
    except YamlError as exc:
        raise InvalidRequest(f"{path}:{exc.line}: {exc.what}") from None
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{path}: {where}: {first['msg']}") from None
    found: dict[str, Webhook] = {}
    for entry in read.webhooks:
        if entry.name in found:
            raise InvalidRequest(f"{path}: two webhooks are named {entry.name}")
        found[entry.name] = _made(path, entry)
    return found


def _made(path: Path, entry: _Entry) -> Webhook:
    parts: Any = urlsplit(entry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise InvalidRequest(
            f"{path}: webhook {entry.name}: url is not http(s)://host/… without a password"
        )
    return Webhook(
        name=entry.name,
        url=entry.url,
        secret=_secret(path, entry),
        kinds=frozenset(entry.kinds),
        tenants=None if entry.tenants is None else frozenset(entry.tenants),
        # An address that is written down is meant.
        private=entry.private or parse_address(parts.hostname) is not None,
    )


def _secret(path: Path, entry: _Entry) -> str:
    if (entry.secret is None) == (entry.secret_file is None):
        raise InvalidRequest(
            f"{path}: webhook {entry.name} needs one of secret and secret_file, to sign with"
        )
    text = entry.secret
    if entry.secret_file is not None:
        try:
            text = entry.secret_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise InvalidRequest(
                f"{path}: secret_file of webhook {entry.name} cannot be read: {exc!r}"[:300]
            ) from None
    if text is None or len(text) < _LEAST_SECRET:
        raise InvalidRequest(
            f"{path}: the secret of webhook {entry.name} is shorter than {_LEAST_SECRET} characters"
        )
    return text
