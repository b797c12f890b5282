"""Settings that are set but have no effect.

One that means nothing on the runtime, or on this machine at all, is refused: nobody should rely on
it. One that belongs to another role is only told: a fleet may share its settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.variables import VARIABLES
from sandbox_server.runtime.base import Enforcement, Runtime
from sandbox_server.settings import IN_PROCESS, Settings, entries

_OF_OTHERS = {"SANDBOX_CACHE", "SANDBOX_COMMAND_ID"}
"""Of this project's development tools, and of commands in a box."""
_LIMITS = {"memory": "memory_limit", "cpu": "cpu_limit", "pids": "pids_limit", "disk": "disk_limit"}


def refuse_without_effect(
    settings: Settings, runtime: Runtime, *, why: str, enforcement: Enforcement
) -> None:
    """why: the reason for the choice of runtime. Raises InvalidRequest."""
    problems = [
        *_not_of_this_runtime(settings, runtime, why),
        *_not_enforced(settings, enforcement),
    ]
    if problems:
        raise InvalidRequest("; ".join(problems))


def _not_of_this_runtime(settings: Settings, runtime: Runtime, why: str) -> Iterator[str]:
    engine = "start a Docker engine (SANDBOX_RUNTIME=docker or auto)"
    if settings.network not in runtime.networks:
        given = f"{settings.variable('network')}={settings.network}"
        off = f"{settings.variable('network')}=none"
        if runtime.name == "docker":
            yield f"{given}: boxes on gVisor have no network; use another runtime, or set {off}"
        else:
            yield f"{given} needs the docker runtime: {engine}, or set {off}; the runtime is {why}"
    if runtime.has_images:
        return
    for entry in entries():
        if entry.name not in settings.model_fields_set or runtime.name in entry.about.runtimes:
            continue
        if entry.about.runtimes and not _means_something(settings, entry.name):
            name = settings.variable(entry.name)
            yield f"{name} needs the docker runtime: {engine}, or unset it; the runtime is {why}"


def _means_something(settings: Settings, name: str) -> bool:
    """On a runtime without images: environments still stand for their policies."""
    if name == "environments":
        return settings.environments.keys() <= settings.policies.keys()
    return name == "network" or not getattr(settings, name)


def _not_enforced(settings: Settings, enforcement: Enforcement) -> Iterator[str]:
    for limit in sorted(enforcement.absent):
        if _LIMITS[limit] in settings.model_fields_set:
            name, lack = settings.variable(_LIMITS[limit]), enforcement.missing()[limit]
            yield (
                f"{name} has no effect here: {lack}; unset it, or see `sandbox doctor` for what"
                " this machine lacks"
            )


def unused(settings: Settings, *, role: str = "") -> dict[str, str]:
    """Settings that belong to another role, or that another one overrides: variable to reason.
    role: that of the settings, unless it is IN_PROCESS."""
    role = role or settings.role
    given = settings.model_fields_set
    if role == IN_PROCESS:
        given = {name for name in given if settings.variable(name) != name}
    found = {
        entry.name: _belongs_to(entry.about.roles, role)
        for entry in entries()
        if entry.name in given and role not in entry.about.roles
    }
    for names, reason in _overridden(settings):
        found |= {name: reason for name in sorted(given & set(names)) if name not in found}
    return {settings.variable(name): reason for name, reason in found.items()}


def _belongs_to(roles: tuple[str, ...], role: str) -> str:
    if role == IN_PROCESS:
        return "only a server uses it"
    if role == "standalone":
        return (
            "this server is standalone; to join a fleet, set SANDBOX_ROLE to worker or coordinator"
        )
    if role == "coordinator":
        return "a coordinator makes no boxes; set it for the workers"
    return f"only a {' or '.join(roles)} uses it"


def _overridden(settings: Settings) -> Iterator[tuple[Iterable[str], str]]:
    if settings.redis_url is not None:
        yield {"redis_host", "redis_port"}, "SANDBOX_REDIS_URL is set"
    elif settings.redis_host is None:
        yield {"redis_port"}, "SANDBOX_REDIS_HOST is not set"
    if settings.api_keys.get_secret_value():
        yield {"allowed_hosts", "insecure"}, "a server with API keys accepts any host name"


def unknown(environ: Mapping[str, str]) -> dict[str, str]:
    """SANDBOX_ variables that are not settings, most likely typos: variable to advice."""
    names = [*(entry.variable for entry in entries()), *VARIABLES]
    known = {*names, *_OF_OTHERS}
    strange = (name for name in environ if name.upper().startswith("SANDBOX_"))
    lists = "`sandbox config` lists them"
    return {
        name: f"unknown setting; {did_you_mean(name.upper(), names) or lists}"
        for name in sorted(strange)
        if name.upper() not in known and not name.startswith("SANDBOX_TEST_")
    }
