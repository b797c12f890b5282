"""Settings that mean nothing where they are given."""

import os

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest, RuntimeUnavailable
from sandbox_server.runtime.registry import RuntimeOptions, choose
from sandbox_server.settings import Settings, load
from sandbox_server.unused import _BOXES, _COORDINATOR, _FLEET, refuse_impossible, unknown, unused

EVERYWHERE = {"role", "host", "port", "worker_id", "api_keys", "allowed_hosts", "insecure",
              "max_upload", "drain_timeout", "log_format", "log_level"}  # fmt: skip


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SANDBOX_", "REDIS_", "WORKERS")):
            monkeypatch.delenv(name)


def test_every_setting_has_its_place() -> None:
    assert EVERYWHERE | _FLEET | _COORDINATOR | {"advertise"} | _BOXES == set(Settings.model_fields)


def test_nothing_given_nothing_said() -> None:
    assert unused(load(), runtime="bubblewrap") == {}


@pytest.mark.parametrize("name", ["REDIS_HOST", "REDIS_URL", "SANDBOX_REDIS_URL", "WORKERS"])
def test_a_fleet_without_a_role(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "redis://r")
    (told,) = unused(load(), runtime="docker").items()
    assert told[0] == name
    assert "SANDBOX_ROLE" in told[1]


@pytest.mark.parametrize(
    ("given", "runtime", "told"),
    [
        ({"image": "x", "environments": {"a": "b"}, "docker_runtime": "runsc"}, "bubblewrap",
         {"SANDBOX_IMAGE", "SANDBOX_ENVIRONMENTS", "SANDBOX_DOCKER_RUNTIME"}),
        ({"image": "x", "environments": {"a": "b"}, "docker_runtime": "runsc"}, "docker", set()),
        ({"fleet_key": "k", "lease": 5, "advertise": "http://w"}, "docker",
         {"SANDBOX_FLEET_KEY", "SANDBOX_LEASE", "SANDBOX_ADVERTISE"}),
        ({"role": "worker", "redis_host": "r", "workers": "http://a", "patience": 3}, "docker",
         {"SANDBOX_WORKERS", "SANDBOX_PATIENCE"}),
        ({"role": "worker", "redis_host": "r", "redis_url": "redis://r"}, "docker",
         {"SANDBOX_REDIS_HOST"}),
        ({"role": "coordinator", "redis_host": "r", "pool_size": 3, "network": "bridge",
          "advertise": "http://w", "workers": "http://a"}, "",
         {"SANDBOX_POOL_SIZE", "SANDBOX_NETWORK", "SANDBOX_ADVERTISE"}),
        ({"api_keys": "a:b", "allowed_hosts": "x"}, "docker", {"SANDBOX_ALLOWED_HOSTS"}),
        ({"redis_port": 1234}, "docker", {"SANDBOX_REDIS_PORT"}),
    ],
)  # fmt: skip
def test_what_means_nothing_here(given: dict[str, object], runtime: str, told: set[str]) -> None:
    assert set(unused(load(**given), runtime=runtime)) == told


def test_slips_of_the_pen() -> None:
    environ = {"SANDBOX_POOLSIZE": "1", "SANDBOX_POOL_SIZE": "1", "SANDBOX_URL": "x", "POOL": "1"}
    assert set(unknown(environ)) == {"SANDBOX_POOLSIZE"}


def test_a_network_needs_docker() -> None:
    bridge = load(network="bridge")
    refuse_impossible(bridge, runtime="docker", why="")
    refuse_impossible(load(), runtime="bubblewrap", why="")
    with pytest.raises(InvalidRequest, match=r"SANDBOX_RUNTIME=docker .* SANDBOX_NETWORK=none"):
        refuse_impossible(bridge, runtime="bubblewrap", why="bubblewrap, as configured")


NOWHERE = "unix:///no/engine.sock"


async def test_a_sandboxed_runtime_is_not_replaced_by_less() -> None:
    with pytest.raises(RuntimeUnavailable, match="SANDBOX_DOCKER_RUNTIME=runsc needs docker"):
        await choose("auto", RuntimeOptions(docker_url=NOWHERE, engine_runtime="runsc"))
    _, why = await choose("auto", RuntimeOptions(docker_url=NOWHERE))
    assert why.startswith("bubblewrap, because")
