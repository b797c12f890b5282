"""Settings that mean nothing where they are given: refused, or told."""

import os
from collections.abc import Callable

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.runtime.base import Enforcement, Runtime
from sandbox_server.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandbox_server.runtime.docker.runtime import DockerRuntime
from sandbox_server.runtime.registry import ChosenRuntime, RuntimeOptions, choose
from sandbox_server.settings import IN_PROCESS, Settings, entries, load
from sandbox_server.unused import refuse_without_effect, unknown, unused

NOWHERE = "unix:///no/engine.sock"
FLEET = {"role": "worker", "redis_host": "r"}


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SANDBOX_", "REDIS_", "WORKERS")):
            monkeypatch.delenv(name)


def docker() -> Runtime:
    return DockerRuntime(NOWHERE)


def gvisor() -> Runtime:
    return DockerRuntime(NOWHERE, engine_runtime="runsc")


def refuse(settings: Settings, runtime: Runtime, **lacking: object) -> None:
    refuse_without_effect(settings, [chosen(runtime, **lacking)])


def chosen(runtime: Runtime, **lacking: object) -> ChosenRuntime:
    enforcement = Enforcement(**lacking)  # type: ignore[arg-type]
    return ChosenRuntime(runtime.name, runtime, f"{runtime.name}, why", enforcement)


def test_nothing_given_nothing_said() -> None:
    assert unused(load()) == {}
    refuse(load(), BubblewrapRuntime(), cpu="not limited", absent=frozenset({"cpu"}))


def test_several_runtimes_share_the_settings() -> None:
    """An image or a network is for those that have one; a limit has to hold on all."""
    both = {"providers": ("docker", "bubblewrap")}
    weak = chosen(BubblewrapRuntime(), cpu="no group", absent=frozenset({"cpu"}))
    opened = [chosen(docker()), weak]
    refuse_without_effect(load(**both, image="node:20", network="bridge"), opened)
    refuse_without_effect(load(**both, environments={"node": "node:20"}), opened)
    for limit in ({"cpu_limit": 0.5}, {"max_cpus": 2}):
        with pytest.raises(InvalidRequest, match="has no effect on bubblewrap boxes: no group"):
            refuse_without_effect(load(**both, **limit), opened)
    with pytest.raises(InvalidRequest, match="boxes on gVisor have no network"):
        refuse_without_effect(load(**both, network="bridge"), [chosen(gvisor()), weak])


def test_every_setting_concerns_somebody() -> None:
    for entry in entries():
        assert entry.about.roles, entry.name
        assert entry.meaning.endswith("."), entry.name
        assert entry.default or entry.about.example, entry.name


@pytest.mark.parametrize("name", ["REDIS_HOST", "REDIS_URL", "SANDBOX_REDIS_URL"])
def test_a_fleet_without_a_role(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "redis://r")
    (told,) = unused(load()).items()
    assert told[0] == name
    assert "SANDBOX_ROLE" in told[1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"fleet_key": "k", "lease": 5}, {"fleet_key", "lease"}),
        ({"advertise": "http://w", "workers": "http://a"}, {"advertise", "workers"}),
        ({**FLEET, "workers": "http://a", "patience": 3}, {"workers", "patience"}),
        ({**FLEET, "redis_url": "redis://r"}, {"redis_host"}),
        ({**FLEET, "role": "coordinator", "pool_size": 3, "network": "bridge",
          "advertise": "http://w", "workers": "http://a"}, {"pool_size", "network", "advertise"}),
        ({"api_keys": "a:b", "allowed_hosts": "x"}, {"allowed_hosts"}),
        ({"redis_port": 1234}, {"redis_port"}),
        ({"image": "x"}, set()),
    ],
)  # fmt: skip
def test_what_belongs_to_another_role(given: dict[str, object], told: set[str]) -> None:
    assert set(unused(load(**given))) == told


def test_what_a_program_passes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_PORT", "1234")
    monkeypatch.setenv("SANDBOX_HOST", "::1")
    monkeypatch.setenv("HOST", "a variable of somebody else")
    monkeypatch.setenv("SANDBOX_POOL_SIZE", "1")
    assert unused(load(insecure=True), role=IN_PROCESS) == {
        "SANDBOX_HOST": "only a server uses it",
        "SANDBOX_PORT": "only a server uses it",
    }


def test_slips_of_the_pen() -> None:
    environ = {"SANDBOX_POOLSIZE": "1", "SANDBOX_POOL_SIZE": "1", "SANDBOX_URL": "x", "POOL": "1",
               "SANDBOX_MEMORY": "1g", "SANDBOX_APIKEY": "k", "SANDBOX_XYZ": ""}  # fmt: skip
    assert unknown(environ) == {
        "SANDBOX_APIKEY": "unknown setting; did you mean SANDBOX_API_KEY?",
        "SANDBOX_MEMORY": "unknown setting; did you mean SANDBOX_MEMORY_LIMIT,"
        " SANDBOX_MAX_MEMORY or SANDBOX_TOTAL_MEMORY?",
        "SANDBOX_POOLSIZE": "unknown setting; did you mean SANDBOX_POOL_SIZE?",
        "SANDBOX_XYZ": "unknown setting; `sandbox config` lists them",
    }


POLICY = {"a": "strict"}


@pytest.mark.parametrize(
    ("given", "make", "told"),
    [
        ({"network": "bridge"}, docker, ""),
        ({"network": "bridge"}, gvisor, "network=bridge: boxes on gVisor have no network"),
        ({"network": "bridge"}, BubblewrapRuntime,
         r"SANDBOX_RUNTIME=docker .* network=none; the runtime is bubblewrap, why"),
        ({"network": "none"}, BubblewrapRuntime, ""),
        ({"image": "x"}, docker, ""),
        ({"image": "x"}, BubblewrapRuntime,
         r"image needs the docker runtime: start a Docker engine .*, or unset it"),
        ({"docker_runtime": "runsc"}, BubblewrapRuntime, "docker_runtime needs the docker runtime"),
        ({"docker_runtime": ""}, BubblewrapRuntime, ""),
        ({"environments": {"a": "b"}}, BubblewrapRuntime, "environments needs the docker runtime"),
        ({"environments": {"a": "b"}, "policies": POLICY}, BubblewrapRuntime, ""),
        ({"environments": {"a": "b", "c": "d"}, "policies": POLICY}, BubblewrapRuntime,
         "environments needs the docker runtime"),
    ],
)  # fmt: skip
async def test_what_means_nothing_on_a_runtime(
    given: dict[str, object], make: Callable[[], Runtime], told: str
) -> None:
    async with make() as runtime:
        if not told:
            refuse(load(**given), runtime)
            return
        with pytest.raises(InvalidRequest, match=told):
            refuse(load(**given), runtime)


async def test_a_limit_that_nothing_enforces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_CPU_LIMIT", "2")
    lack = {"cpu": "not limited: no control group", "memory": "per process only"}
    told = "SANDBOX_CPU_LIMIT has no effect here: not limited: no control group; unset it"
    with pytest.raises(InvalidRequest, match=told):
        refuse(load(), BubblewrapRuntime(), **lack, absent=frozenset({"cpu"}))
    refuse(load(memory_limit="1g"), BubblewrapRuntime(), memory="per process only")


async def test_a_sandboxed_runtime_is_not_replaced_by_less() -> None:
    with pytest.raises(RuntimeUnavailable, match="SANDBOX_DOCKER_RUNTIME=runsc needs docker"):
        await choose("auto", RuntimeOptions(docker_url=NOWHERE, engine_runtime="runsc"))
    _, why = await choose("auto", RuntimeOptions(docker_url=NOWHERE))
    assert why.startswith("bubblewrap, because")
