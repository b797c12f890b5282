"""Settings that are set but have no effect.

One that means nothing on the runtime, or on this machine at all, is refused: nobody should rely on
it. One that belongs to another role is only told: a fleet may share its settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.variables import VARIABLES
from sandbox_server.runtime.registry import ChosenRuntime
from sandbox_server.settings import IN_PROCESS, Settings, entries

_OF_OTHERS = {"SANDBOX_CACHE", "SANDBOX_COMMAND_ID"}
"""Of this project's development tools, and of commands in a box."""
_LIMITS = {
    "memory": ("memory_limit", "max_memory", "total_memory"),
    "cpu": ("cpu_limit", "max_cpus"),
    "pids": ("pids_limit", "max_pids"),
    "disk": ("disk_limit", "max_disk"),
}


def refuse_without_effect(settings: Settings, opened: Sequence[ChosenRuntime]) -> None:
    """Raises InvalidRequest. A network or an image needs one runtime that has such a thing, and the
    sessions of the others do without; a limit has to hold on all of them but hosted ones."""
    problems = [
        *_of_no_runtime(settings, opened),
        *(problem for each in _with_limits(opened) for problem in _not_enforced(settings, each)),
    ]
    if problems:
        raise InvalidRequest("; ".join(dict.fromkeys(problems)))


def _with_limits(opened: Sequence[ChosenRuntime]) -> Sequence[ChosenRuntime]:
    """Those on which limits of the settings have to hold: hosted sandboxes have those of their
    template, so beside another runtime they are left out."""
    return [each for each in opened if not each.runtime.has_templates] or opened


def _of_no_runtime(settings: Settings, opened: Sequence[ChosenRuntime]) -> Iterator[str]:
    engine = "start a Docker engine (SANDBOX_RUNTIME=docker or auto)"
    why = ", and ".join(each.why for each in opened)
    if not any(settings.network in each.runtime.networks for each in opened):
        given = f"{settings.variable('network')}={settings.network}"
        off = f"{settings.variable('network')}=none"
        open_ = f"{settings.variable('network')}=open"
        if any(each.runtime.name == "docker" for each in opened):
            yield (
                f"{given}: boxes on gVisor have no network of their own; use another runtime, or"
                f" set {open_} (any public host, through the server) or {off}"
            )
        elif any(each.runtime.has_templates for each in opened):
            bridge = f"{settings.variable('network')}=bridge"
            yield (
                f"{given}: connections of e2b boxes do not go through this server; set {bridge}"
                f" (E2B's own network) or {off}"
            )
        else:
            yield (
                f"{given} needs the docker runtime: {engine}, or set {open_} (any public host,"
                f" through the server) or {off}; the runtime is {why}"
            )
    if any(each.runtime.has_images for each in opened):
        return
    names = {each.runtime.name for each in opened}
    for entry in entries():
        if entry.name not in settings.model_fields_set or names & set(entry.about.runtimes):
            continue
        if entry.about.runtimes and not _means_something(settings, entry.name):
            name = settings.variable(entry.name)
            if "docker" not in entry.about.runtimes:
                (of,) = entry.about.runtimes
                yield f"{name} is for the {of} runtime: add that to SANDBOX_PROVIDERS, or unset it"
                continue
            yield f"{name} needs the docker runtime: {engine}, or unset it; the runtime is {why}"


def _means_something(settings: Settings, name: str) -> bool:
    """On a runtime without images: environments still stand for their policies."""
    if name == "environments":
        return settings.environments.keys() <= settings.policies.keys()
    return name == "network" or not getattr(settings, name)


def _not_enforced(settings: Settings, chosen: ChosenRuntime) -> Iterator[str]:
    lacks = chosen.enforcement.missing()
    where = f"on {chosen.name} boxes" if len(settings.providers) > 1 else "here"
    for limit in sorted(chosen.enforcement.absent):
        for name in _LIMITS[limit]:
            if name in settings.model_fields_set:
                yield (
                    f"{settings.variable(name)} has no effect {where}: {lacks[limit]}; unset it, or"
                    " see `sandbox doctor` for what this machine lacks"
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
    if not settings.traces:
        yield {"trace_commands"}, "SANDBOX_TRACES is not set"
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
