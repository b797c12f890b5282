"""Bearer tokens of an API server: fixed, from a file that is replaced, or from a program."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable

_READ_AGAIN_S = 60.0
"""The kubelet replaces the token of a service account well before it ends."""
_COMMAND_S = 30.0
_EARLY_S = 30.0
"""How long before its end a token is replaced."""


class Token(ABC):
    @abstractmethod
    async def value(self) -> str:
        """Empty if there is none. Raises RuntimeUnavailable."""

    def forget(self) -> None:  # noqa: B027
        """The API server has refused it."""


class NoToken(Token):
    """A client certificate says who we are, or nothing does."""

    async def value(self) -> str:
        return ""


class _Fixed(Token):
    def __init__(self, value: str) -> None:
        self._value = value

    async def value(self) -> str:
        return self._value


def fixed_token(value: str) -> Token:
    return _Fixed(value)


class TokenFile(Token):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = -_READ_AGAIN_S
        self._value = ""

    async def value(self) -> str:
        now = time.monotonic()
        if now - self._read_at >= _READ_AGAIN_S:
            try:
                self._value = self._path.read_text().strip()
            except OSError as exc:
                raise RuntimeUnavailable(f"no token for the cluster: {exc}") from exc
            self._read_at = now
        return self._value

    def forget(self) -> None:
        self._read_at = -_READ_AGAIN_S


class CommandToken(Token):
    """What the programs of cloud providers print (client.authentication.k8s.io)."""

    def __init__(self, argv: list[str], env: Mapping[str, str], version: str) -> None:
        self._argv, self._version = argv, version
        self._env = {**os.environ, **env}
        self._value = ""
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def value(self) -> str:
        async with self._asking:
            if time.time() >= self._until:
                await self._ask()
            return self._value

    def forget(self) -> None:
        self._until = 0.0

    async def _ask(self) -> None:
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": {}}
        env = {**self._env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, env=env, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as exc:
            raise self._failed(str(exc)) from exc
        try:
            async with asyncio.timeout(_COMMAND_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise self._failed(f"nothing within {_COMMAND_S:g} s") from None
        if process.returncode != 0:
            raise self._failed(err.decode("utf-8", "replace").strip()[-300:])
        try:
            status = json.loads(out)["status"]
            self._value, self._until = str(status["token"]), _end_of(status)
        except (ValueError, LookupError, TypeError) as exc:
            raise self._failed(f"its answer has no token ({exc})") from exc

    def _failed(self, why: str) -> RuntimeUnavailable:
        return RuntimeUnavailable(f"no token for the cluster from {self._argv[0]}: {why}")


def command_token(config: Mapping[str, Any], folder: Path) -> CommandToken:
    """The `exec` of a user in a kubeconfig."""
    command = str(config["command"])
    program = str(folder / command) if "/" in command else shutil.which(command) or command
    env = {each["name"]: each["value"] for each in config.get("env") or ()}
    return CommandToken([program, *(config.get("args") or ())], env, str(config["apiVersion"]))


def _end_of(status: Mapping[str, Any]) -> float:
    """Without an end it is good until it is refused."""
    if until := status.get("expirationTimestamp"):
        return datetime.fromisoformat(until).timestamp() - _EARLY_S
    return float("inf")
