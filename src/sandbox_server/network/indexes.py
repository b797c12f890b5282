"""The built-in preset `indexes`: where this server's own pip, npm and apt get packages from, as
their configuration says. Passwords in it stay here: the proxy adds them to requests."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from sandbox_server.network.headers import fixed
from sandbox_server.network.hosts import InvalidHost, parse_host
from sandbox_server.network.index_config import ToolConfig, read_tools
from sandbox_server.network.rules import HTTP, HTTPS, Rule
from sandbox_server.runtime.base import HOME

_READS = frozenset({"GET", "HEAD"})
_LARGEST_CA = 4 << 20
_CA_VARIABLES = (
    "PIP_CERT", "NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
)  # fmt: skip
"""Each names a file with authorities, for one kind of program."""


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """What boxes that may use them are made with."""

    rules: tuple[Rule, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def read_indexes() -> Indexes:
    """Those of this machine. Blocks for a second: pip and npm are asked."""
    return indexes_of(read_tools(), os.environ)


def indexes_of(tools: ToolConfig, environ: Mapping[str, str]) -> Indexes:
    pip = [index for url in tools.pip if (index := _Index.parse(url))]
    npm = [index for url in tools.npm if (index := _Index.parse(url, token=tools.npm_token(url)))]
    others = [index for url in tools.others if (index := _Index.parse(url))]
    env: dict[str, str] = {}
    if tools.pip_is_set and pip:
        first, *more = (index.url for index in pip)
        env |= {"PIP_INDEX_URL": first, "UV_DEFAULT_INDEX": first}
        if more:
            env |= {"PIP_EXTRA_INDEX_URL": " ".join(more), "UV_INDEX": " ".join(more)}
        if trusted := dict.fromkeys(index.host for index in pip if index.plain):
            env["PIP_TRUSTED_HOST"] = " ".join(trusted)
    if tools.npm_is_set and npm:
        env["NPM_CONFIG_REGISTRY"] = npm[0].url
    authorities, files = _authorities(tools, environ)
    rules = _unique(index.rule for index in (*pip, *npm, *others))
    return Indexes(rules=rules, env={**env, **authorities}, files=files)


@dataclass(frozen=True)
class _Index:
    url: str
    """As boxes are told: without credentials."""
    rule: Rule

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def plain(self) -> bool:
        return self.url.startswith("http://")

    @classmethod
    def parse(cls, url: str, *, token: str = "") -> _Index | None:
        """None if it is not on another machine: a folder, or this one's loopback."""
        parts = urlsplit(url)
        try:
            host, port = parse_host(parts.hostname or ""), parts.port
        except (InvalidHost, ValueError):
            return None
        if parts.scheme not in ("http", "https") or _is_loopback(str(host)):
            return None
        secret = f"Bearer {token}" if token else _basic(parts)
        https = parts.scheme == "https"
        usual = HTTPS if https else HTTP
        where = parts.netloc.rpartition("@")[2]
        scheme = "http" if secret else parts.scheme
        rule = Rule(
            host=host if isinstance(host, str) else "",
            network=None if isinstance(host, str) else ip_network(str(host)),
            ports=frozenset() if port in (None, usual) else frozenset({port}),
            methods=_READS if secret else frozenset(),
            https=https and bool(secret),
            headers={"authorization": fixed(secret, "of an index")} if secret else {},
        )
        return cls(parts._replace(scheme=scheme, netloc=where, fragment="").geturl(), rule)


def _basic(parts: SplitResult) -> str:
    if parts.username is None and parts.password is None:
        return ""
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _unique(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    found: list[Rule] = []
    for rule in rules:
        if rule.headers or rule not in found:
            found.append(rule)
    return tuple(found)


def _authorities(
    tools: ToolConfig, environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and files: a box gets the authorities that the server's programs are set up with,
    each for the same program."""
    named = {name: environ[name] for name in _CA_VARIABLES if environ.get(name)}
    named |= {name: path for name, path in tools.authorities.items() if path}
    places: dict[str, str] = {}
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    for name, path in sorted(named.items()):
        text = _read(Path(path))
        if text:
            place = places.setdefault(text, f"{HOME}/.authorities-{len(places) + 1}.pem")
            env[name], files[place] = place, text
    return env, files


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_CA:
            return ""
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if "PRIVATE KEY" in text else text
