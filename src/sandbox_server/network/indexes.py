"""The built-in preset `indexes`: where this server's own pip, npm and apt get packages from, as
their configuration says. Passwords in it stay here: the proxy adds them to requests."""

from __future__ import annotations

import ast
import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from sandbox_server.network.headers import fixed
from sandbox_server.network.hosts import InvalidHost, parse_host
from sandbox_server.network.rules import HTTP, HTTPS, Rule
from sandbox_server.runtime.base import HOME

_ASK_S = 20.0
_PIP = re.compile(r"^(global|install|:env:)\.([a-z-]+)=(.*)$", re.M)
_PIP_ORDER = ("global", "install", ":env:")
_DEFAULTS = (
    "from pip._internal.models.index import PyPI as i\n"
    "print(i.simple_url, 'https://' + i.file_storage_domain)"
)
"""What pip itself uses where nothing is configured."""
_TOKEN = re.compile(r"^(//[^=]+?):_authToken$")
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_APT_LINE = re.compile(r"^\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?(\S+)", re.M)
_APT_FIELD = re.compile(r"^URIs:((?:.*\n?)(?:[ \t].*\n?)*)", re.M)
_READS = frozenset({"GET", "HEAD"})
_LARGEST_CA = 4 << 20
_CA_VARIABLES = (
    "PIP_CERT", "NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO",
)  # fmt: skip
"""Each names a file with authorities, for one kind of program."""
_CONFIG = f"{HOME}/.apt.conf"
APT_ENV = {"APT_CONFIG": _CONFIG}
"""In a box, whose user is not root and can write few folders."""
# apt makes folders itself that it lacks, below one that is there.
APT_FILES = {
    _CONFIG: """\
Dir::State "/workspace/";
Dir::State::lists ".cache/apt/lists/";
Dir::State::status "/var/lib/dpkg/status";
Dir::State::extended_states "/var/lib/apt/extended_states";
Dir::Cache "/workspace/";
Dir::Cache::archives ".cache/apt/archives/";
Dir::Cache::pkgcache ".cache/apt/pkgcache.bin";
Dir::Cache::srcpkgcache ".cache/apt/srcpkgcache.bin";
"""
}


@dataclass(frozen=True, kw_only=True)
class ToolConfig:
    """URLs, with credentials where the configuration has them in it."""

    pip: tuple[str, ...] = ()
    pip_is_set: bool = True
    """Whether it was configured; else it is what pip does by itself, in a box too."""
    npm: tuple[str, ...] = ()
    npm_is_set: bool = True
    npm_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By URL without its scheme."""
    others: tuple[str, ...] = ()
    authorities: Mapping[str, str] = field(default_factory=dict)
    """Paths by the variable that would set them."""

    def npm_token(self, url: str) -> str:
        bare = re.sub(r"^https?:", "", url)
        fits = [where for where in self.npm_tokens if bare.startswith(where.rstrip("/"))]
        return self.npm_tokens[max(fits, key=len)] if fits else ""


def read_tools() -> ToolConfig:
    pip = _pip_settings(_said([sys.executable, "-m", "pip", "config", "list"]), os.environ)
    urls = [*pip.get("index-url", "").split(), *pip.get("extra-index-url", "").split()]
    is_set = "index-url" in pip
    if not is_set and pip.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        urls += _said([sys.executable, "-c", _DEFAULTS]).split()
    npmrc = _npmrc(os.environ)
    registry = npmrc.get("registry", "")
    asked = registry or (_said(["npm", "config", "get", "registry"]) if shutil.which("npm") else "")
    scoped = [value for name, value in npmrc.items() if name.endswith(":registry")]
    return ToolConfig(
        pip=tuple(urls),
        pip_is_set=is_set,
        npm=tuple(each.strip() for each in (asked, *scoped) if each.strip()),
        npm_is_set=bool(registry),
        npm_tokens={
            found[1]: value for name, value in npmrc.items() if (found := _TOKEN.match(name))
        },
        others=tuple(apt_urls(Path("/etc/apt"))),
        authorities={"PIP_CERT": pip.get("cert", ""), "NPM_CONFIG_CAFILE": npmrc.get("cafile", "")},
    )


def _pip_settings(listed: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What `pip config list` says; without a pip, what the environment says."""
    found: dict[str, str] = {
        name[4:].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_")
    }
    for section in _PIP_ORDER:
        for of, name, value in _PIP.findall(listed):
            if of == section:
                try:
                    found[name] = str(ast.literal_eval(value))
                except (ValueError, SyntaxError):
                    continue
    return found


def _npmrc(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables count more than the user's file, and that more than the machine's."""
    variables = {
        name[11:].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.lower().startswith("npm_config_") and value
    }
    user = Path(variables.get("userconfig", "~/.npmrc")).expanduser()
    machine = Path(variables.get("globalconfig", "/etc/npmrc"))
    found: dict[str, str] = {}
    for path in (machine, user):
        found |= npmrc_settings(_text(path), environ)
    return {**found, **variables}


def npmrc_settings(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith((";", "#")):
            value = _VARIABLE.sub(lambda each: environ.get(each[1], ""), value.strip().strip("\"'"))
            found[name.strip()] = value
    return found


def apt_urls(folder: Path) -> Iterator[str]:
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        text = re.sub(r"(?m)^\s*#.*$", "", _text(path))
        lines = _APT_FIELD.findall(text) if path.suffix == ".sources" else _APT_LINE.findall(text)
        for line in lines:
            yield from line.split()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _said(words: list[str]) -> str:
    """What a program prints; nothing if it fails."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_S,
            cwd="/",
            check=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout


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
