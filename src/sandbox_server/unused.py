"""Settings that are set but have no effect: logged at the start, so that no operator relies on
them. Impossible combinations are refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.settings import Settings

_FLEET = {"redis_url", "redis_host", "redis_port", "redis_namespace", "fleet_key", "lease", "grace"}
_COORDINATOR = {"workers", "patience"}
_WORKER = {"advertise"}
_BOXES = {
    "runtime", "docker_runtime", "image", "environments", "state_dir", "pool_size",
    "min_pool_size", "max_pool_size", "max_sessions", "idle_timeout", "command_timeout",
    "memory_limit", "cpu_limit", "pids_limit", "disk_limit", "network", "output_limit", "policy",
    "policies", "audit_log", "destroy_on_exit",
}  # fmt: skip
_DOCKER = {"docker_runtime", "image", "environments"}
_OF_OTHERS = {"SANDBOX_URL", "SANDBOX_API_KEY", "SANDBOX_THREAD", "SANDBOX_CACHE"}
"""Variables of clients and of this project's development tools."""


def refuse_impossible(settings: Settings, *, runtime: str, why: str) -> None:
    """why: the reason for the choice of runtime. Raises InvalidRequest."""
    if runtime == "bubblewrap" and settings.network != "none":
        raise InvalidRequest(
            f"SANDBOX_NETWORK={settings.network} needs the docker runtime, but this server uses"
            f" {why}: set SANDBOX_RUNTIME=docker and start an engine, or set SANDBOX_NETWORK=none"
        )


def unused(settings: Settings, *, runtime: str = "") -> dict[str, str]:
    """Settings without effect: variable to reason. `runtime`: the one in use, if any."""
    given = settings.model_fields_set
    found: dict[str, str] = {}
    for names, reason in _reasons(settings, runtime):
        found |= {name: reason for name in sorted(given & set(names)) if name not in found}
    return {_variable(name): reason for name, reason in found.items()}


def unknown(environ: Mapping[str, str]) -> dict[str, str]:
    """SANDBOX_ variables that are not settings, most likely typos."""
    known = {f"SANDBOX_{name.upper()}" for name in Settings.model_fields} | _OF_OTHERS
    strange = (name for name in environ if name.upper().startswith("SANDBOX_"))
    return {
        name: "unknown setting; `sandbox config` lists them"
        for name in sorted(strange)
        if name.upper() not in known and not name.startswith("SANDBOX_TEST_")
    }


def _reasons(settings: Settings, runtime: str) -> Iterator[tuple[Iterable[str], str]]:
    role = settings.role
    if role == "standalone":
        fleet = "this server is standalone; to join a fleet, set SANDBOX_ROLE to worker or"
        yield _FLEET | _COORDINATOR | _WORKER, f"{fleet} coordinator"
    if role != "coordinator":
        yield _COORDINATOR, "only a coordinator uses it"
    if role != "worker":
        yield _WORKER, "only a worker uses it"
    if role == "coordinator":
        yield _BOXES, "a coordinator makes no boxes; set it for the workers"
    if runtime == "bubblewrap":
        yield _DOCKER, "bubblewrap boxes use the programs of this machine, not an image"
    if settings.redis_url is not None:
        yield {"redis_host", "redis_port"}, "SANDBOX_REDIS_URL is set"
    elif settings.redis_host is None:
        yield {"redis_port"}, "SANDBOX_REDIS_HOST is not set"
    if settings.api_keys.get_secret_value():
        yield {"allowed_hosts", "insecure"}, "a server with API keys accepts any host name"


def _variable(name: str) -> str:
    """The variable's name as it was set in the environment, with or without the prefix."""
    plain = name.upper()
    return plain if plain in os.environ and f"SANDBOX_{plain}" not in os.environ else (
        f"SANDBOX_{plain}"
    )  # fmt: skip
