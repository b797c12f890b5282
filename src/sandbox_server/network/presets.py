"""Presets: rules under a name, in YAML files of an operator, read again when a file has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.network.headers import Secret, SecretMissing, header_name, secret
from sandbox_server.network.hosts import InvalidHost
from sandbox_server.network.networks import Networks
from sandbox_server.network.rules import Rule, parse_rule
from sandbox_server.registry import yaml_lines
from sandbox_server.registry.stamps import Stamps, stamps
from sandbox_server.registry.yaml_lines import Located, YamlError
from sandbox_server.tasks import stop

log = structlog.get_logger()

_SUFFIXES = (".yaml", ".yml")
_MOST = 200
"""Files."""
LOOK_S = 0.5


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _RuleEntry(_Strict):
    host: str
    ports: tuple[int, ...] = Field((), max_length=100)
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    https: bool | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    ca: str = ""


class _PresetFile(_Strict):
    description: str = ""
    rules: tuple[_RuleEntry, ...] = Field(min_length=1)


def read_presets(folder: Path | None) -> dict[str, tuple[Rule, ...]]:
    """By the names of their files. Raises InvalidRequest, which names file, line and field."""
    if folder is None:
        return {}
    try:
        files = preset_files(folder)
    except OSError as exc:
        raise InvalidRequest(
            f"SANDBOX_NETWORK_PRESETS: {folder} cannot be read: {exc.strerror}; name a folder"
        ) from None
    if len(files) > _MOST:
        raise InvalidRequest(f"SANDBOX_NETWORK_PRESETS: {folder} has more than {_MOST} files")
    return {path.stem: tuple(_read(path)) for path in files}


def preset_files(folder: Path) -> list[Path]:
    """Raises OSError."""
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)


def _read(path: Path) -> Iterator[Rule]:
    try:
        with path.open("rb") as stream:
            located = yaml_lines.parse(stream.read(yaml_lines.MAX_BYTES + 1))
        read = _PresetFile.model_validate(located.value)
    except OSError as exc:
        raise InvalidRequest(f"{path}: cannot be read: {exc.strerror}") from None
    except YamlError as exc:
        raise InvalidRequest(f"{path}:{exc.line}: {exc.what}") from None
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise _wrong(path, located, first["loc"], _said(first)) from None
    for at, entry in enumerate(read.rules):
        yield _Entry(path, located, at, entry).rule()


def _said(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        fields = _RuleEntry if len(error["loc"]) > 1 else _PresetFile
        return f"no such field; there are {', '.join(fields.model_fields)}"
    if error["type"] == "missing":
        return "missing"
    return str(error["msg"])


def _wrong(path: Path, located: Located, where: tuple[str | int, ...], what: str) -> InvalidRequest:
    named = ".".join(str(each) for each in where)
    line = located.line(where)
    return InvalidRequest(f"{path}:{line}: {named}: {what}" if named else f"{path}:{line}: {what}")


@dataclass(frozen=True)
class _Entry:
    """One rule of a file."""

    path: Path
    located: Located
    at: int
    entry: _RuleEntry

    def _wrong(self, field: str, what: str) -> InvalidRequest:
        return _wrong(self.path, self.located, ("rules", self.at, field), what)

    def rule(self) -> Rule:
        entry = self.entry
        try:
            named = parse_rule(entry.host)
        except InvalidHost as exc:
            raise self._wrong("host", f"{exc}") from None
        ports = frozenset(entry.ports) | named.ports
        if any(not 1 <= port <= 65535 for port in ports):
            raise self._wrong("ports", "a port is between 1 and 65535")
        if entry.https is False and entry.headers:
            raise self._wrong("https", "headers are sent over https alone: leave it out")
        if entry.headers and named.host.startswith("*."):
            raise self._wrong("host", "headers are for one host: name it without `*`")
        return Rule(
            host=named.host,
            network=named.network,
            ports=ports,
            methods=frozenset(self._method(each) for each in entry.methods),
            paths=tuple(self._path_pattern(each) for each in entry.paths),
            https=bool(entry.https or entry.headers),
            headers=dict(self._header(*each) for each in entry.headers.items()),
            ca=self._ca(entry.ca),
        )

    def _method(self, text: str) -> str:
        if not text.isascii() or not text.isalpha() or text.upper() == "CONNECT":
            raise self._wrong("methods", f"{text!r} is not a method, such as GET")
        return text.upper()

    def _path_pattern(self, text: str) -> str:
        if not text.startswith("/") or "*" in text[:-1] or "?" in text:
            raise self._wrong("paths", f"{text!r}: write /path, or /path/* for all below it")
        return text

    def _header(self, name: str, text: str) -> tuple[str, Secret]:
        try:
            return header_name(name), secret(text, folder=self.path.parent)
        except (ValueError, SecretMissing) as exc:
            raise self._wrong("headers", f"{name}: {exc}") from None

    def _ca(self, name: str) -> str:
        if name and not (self.path.parent / name).is_file():
            raise self._wrong("ca", f"no file {name!r}")
        return str((self.path.parent / name).absolute()) if name else ""


class PresetWatch:
    """Use as an async context manager: it looks for changes inside. A bad change is logged and told
    by the networks' `problem`; the last presets without a mistake stay in use."""

    def __init__(self, folder: Path | None, networks: Networks) -> None:
        """folder: that the networks' presets are from; None: there are none."""
        self._folder = folder
        self._networks = networks
        self._seen: Stamps = () if folder is None else _stamps(folder)
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            self._watching = asyncio.create_task(self._watch(self._folder))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._watching is not None:
            await stop(self._watching)

    async def look(self, folder: Path) -> None:
        """Take up what has changed."""
        seen = await asyncio.to_thread(_stamps, folder)
        if seen == self._seen:
            return
        self._seen, problem = seen, ""
        try:
            self._networks.use_presets(await asyncio.to_thread(read_presets, folder))
            log.info("presets.read", folder=str(folder))
        except InvalidRequest as exc:
            problem = exc.message
            if problem != self._networks.problem:
                log.error("presets.bad", why=problem, kept="the last good ones")
        self._networks.problem = problem

    async def _watch(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(folder)
            except Exception:
                log.exception("presets.failed")


def _stamps(folder: Path) -> Stamps:
    """Empty for a folder that cannot be listed."""
    try:
        return stamps((folder, *preset_files(folder)))
    except OSError:
        return ()
