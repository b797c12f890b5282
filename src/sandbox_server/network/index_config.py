"""The configuration of this machine's pip, npm and apt, as far as it says where packages are."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
        authorities={
            "PIP_CERT": pip.get("cert", ""),
            "NPM_CONFIG_CAFILE": npmrc.get("cafile", ""),
        },
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
