"""Where previews are: the origin of each, for its URL and from a request's Host header. Pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

TOKEN = "token"
"""The parameter of a URL that has the token."""
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(
    r"([1-9][0-9]{0,4})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([a-z0-9.-]+)(?::[0-9]{1,5})?"
)
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_LAST_PORT = 65535


class Origin(NamedTuple):
    """What a preview shows."""

    session_id: str
    port: int


@dataclass(frozen=True, kw_only=True)
class PreviewAddress:
    """The URL below whose host every preview has a name of its own."""

    scheme: str
    domain: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError."""
        parts = urlsplit(url)
        domain = (parts.hostname or "").lower()
        if parts.scheme not in _PORTS or parts.path not in ("", "/") or parts.query or "@" in url:
            raise ValueError("write http://HOST:PORT or https://HOST, with nothing after it")
        if not _DOMAIN.fullmatch(domain) or domain.replace(".", "").isdecimal():
            raise ValueError(f"{domain!r} is not a host name, of which previews could have others")
        return cls(scheme=parts.scheme, domain=domain, port=parts.port or _PORTS[parts.scheme])

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    def __str__(self) -> str:
        return f"{self.scheme}://*.{self.netloc}"

    @property
    def netloc(self) -> str:
        """The host, with its port unless that is the one of the scheme."""
        return f"{self.domain}{self._shown_port}"

    @property
    def _shown_port(self) -> str:
        return "" if self.port == _PORTS[self.scheme] else f":{self.port}"

    def url(self, origin: Origin, token: str | None = None) -> str:
        """The URL of a preview, with the token if it is given."""
        host = f"{origin.port}-{origin.session_id}.{self.netloc}"
        return f"{self.scheme}://{host}/{'' if token is None else f'?{TOKEN}={token}'}"

    def named(self, host: str) -> Origin | None:
        """The preview that a Host header names; None if it names none."""
        found = _HOST.fullmatch(host.lower())
        if found is None or found[3] != self.domain or int(found[1]) > _LAST_PORT:
            return None
        return Origin(found[2], int(found[1]))


PreviewSite = Callable[[], Awaitable[PreviewAddress]]
"""Where the previews of this server are. Raises RuntimeUnavailable if it has none."""
