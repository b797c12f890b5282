"""How to reach a cluster, from a kubeconfig or from inside a pod of it, and the token by which it
knows us: fixed, from a file that is replaced, or from a program."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from sandbox_sdk.protocol.errors import RuntimeUnavailable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE = "default"
_READ_AGAIN_S = 60.0
"""The kubelet replaces the token of a service account well before it ends."""
_COMMAND_S = 30.0
_EARLY_S = 30.0
"""How long before its end a token is replaced."""


class Token:
    """A bearer token that stays the same. Empty where a client certificate says who we are, or
    nothing does."""

    def __init__(self, value: str = "") -> None:
        self._value = value

    async def value(self) -> str:
        """Raises RuntimeUnavailable."""
        return self._value

    def forget(self) -> None:
        """The API server has refused it."""


class TokenFile(Token):
    """One in a file that is replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._read_at = -_READ_AGAIN_S

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
        super().__init__()
        self._argv, self._version = argv, version
        self._env = {**os.environ, **env}
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


@dataclass(frozen=True, kw_only=True)
class Access:
    """An API server, who we are there, and the namespace of boxes."""

    url: str
    namespace: str = DEFAULT_NAMESPACE
    token: Token
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that its certificate has, if that is not the one in the url."""

    def __repr__(self) -> str:
        return f"<Access {self.url} namespace {self.namespace}>"

    @classmethod
    def find(cls, kubeconfig: str | None = None, *, namespace: str | None = None) -> Access:
        """From the kubeconfig given, else the one at KUBECONFIG, else from inside a pod, else from
        ~/.kube/config. Raises RuntimeUnavailable."""
        path = kubeconfig or os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
        if not path and (SERVICE_ACCOUNT / "token").exists():
            return cls.in_cluster(namespace=namespace)
        return cls.from_kubeconfig(
            Path(path).expanduser() if path else Path.home() / ".kube" / "config",
            namespace=namespace,
        )

    @classmethod
    def in_cluster(cls, folder: Path = SERVICE_ACCOUNT, *, namespace: str | None = None) -> Access:
        """As the service account of the pod that this process is in."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
        if not host:
            raise RuntimeUnavailable("no cluster: KUBERNETES_SERVICE_HOST is not set in this pod")
        host = f"[{host}]" if ":" in host else host
        own = folder / "namespace"
        return cls(
            url=f"https://{host}:{port or 443}",
            namespace=namespace or (own.read_text().strip() if own.exists() else DEFAULT_NAMESPACE),
            token=TokenFile(folder / "token"),
            tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        )

    @classmethod
    def from_kubeconfig(cls, path: Path, *, namespace: str | None = None) -> Access:
        """Its current context."""
        try:
            config = yaml.safe_load(path.read_text())
            context = _named(config, "contexts", "context", config["current-context"])
            cluster = _named(config, "clusters", "cluster", context["cluster"])
            user = _named(config, "users", "user", context["user"])
            return cls(
                url=str(cluster["server"]).rstrip("/"),
                namespace=namespace or context.get("namespace") or DEFAULT_NAMESPACE,
                token=_token(user, path.parent),
                tls=_tls(cluster, user, path.parent),
                server_name=cluster.get("tls-server-name"),
            )
        except FileNotFoundError as exc:
            raise RuntimeUnavailable(
                f"no cluster: there is no file {exc.filename}; set SANDBOX_KUBERNETES_KUBECONFIG or"
                " KUBECONFIG, or run the server in a pod with a service account"
            ) from exc
        except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as exc:
            why = " ".join(str(exc).split())[:200]
            message = f"{path} is no usable kubeconfig: {type(exc).__name__}: {why}"
            raise RuntimeUnavailable(message) from exc


def _named(config: Mapping[str, Any], group: str, kind: str, name: str) -> dict[str, Any]:
    for each in config.get(group) or ():
        if each["name"] == name:
            return dict(each.get(kind) or {})
    raise LookupError(f"{group} has no {name!r}")


def _token(user: Mapping[str, Any], folder: Path) -> Token:
    if "token" in user:
        return Token(user["token"])
    if "tokenFile" in user:
        return TokenFile(folder / user["tokenFile"])
    if "exec" in user:
        return command_token(user["exec"], folder)
    if "auth-provider" in user:
        raise ValueError("auth-provider is no longer supported by Kubernetes: use exec")
    return Token()


def _tls(
    cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path
) -> ssl.SSLContext | None:
    if str(cluster["server"]).startswith("http://"):
        return None
    ca = _content(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=ca.decode() if ca else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    if certificate and key:
        as_files([certificate, key], lambda names: context.load_cert_chain(*names))
    return context


def _content(values: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    """What a kubeconfig has inline, or the name of a file with."""
    if data := values.get(f"{name}-data"):
        return base64.b64decode(data)
    return (folder / values[name]).read_bytes() if values.get(name) else None


def as_files(contents: list[bytes], use: Callable[[list[str]], None]) -> None:
    """ssl takes certificates from files alone."""
    with tempfile.TemporaryDirectory(prefix="sandbox-tls-") as folder:
        names = []
        for number, content in enumerate(contents):
            path = Path(folder, str(number))
            path.write_bytes(content)
            names.append(str(path))
        use(names)
