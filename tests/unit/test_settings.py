"""Settings: where they come from, and what a bad one ends in."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk import LocalBackend
from sandbox_sdk.backends.local import LocalSettings
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server import main as main_module
from sandbox_server.access.known_keys import create
from sandbox_server.access.opening import has_keys, open_key_store
from sandbox_server.checks import check_settings
from sandbox_server.local.host import local_settings
from sandbox_server.settings import IN_PROCESS, Settings, entries, load
from sandbox_server.settings.capacity import memory_bytes, sessions_for
from sandbox_server.settings.file import read_into_environment

SECRET = "acme:key-of-acme"


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SANDBOX_", "REDIS_")) or name in ("PORT", "POOL_SIZE", "WORKER_ID"):
            monkeypatch.delenv(name)


def test_defaults_are_those_of_the_contract() -> None:
    found = load()
    assert (found.pool_size, found.min_pool_size, found.max_pool_size) == (5, 2, 20)
    assert (found.idle_timeout, found.command_timeout) == (1800, 30)
    assert (found.memory_limit, found.cpu_limit) == (512 << 20, 0.5)
    assert (found.pids_limit, found.disk_limit) == (256, 1 << 30)
    assert (found.network, found.max_upload) == ("none", 100 << 20)
    assert (found.image, found.host) == ("sandbox-secure:latest", "127.0.0.1")
    assert found.listening_port() == 8000
    assert load(role="worker", redis_url="redis://r").listening_port() == 5000
    assert load(role="coordinator", redis_host="r").redis() == "redis://r:6379/0"


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("POOL_SIZE", "7", "pool_size", 7),
        ("MIN_POOL_SIZE", "1", "min_pool_size", 1),
        ("MAX_POOL_SIZE", "30", "max_pool_size", 30),
        ("PORT", "9000", "port", 9000),
        ("WORKER_ID", "w-1", "worker_id", "w-1"),
        ("WORKERS", "http://a, http://b", "workers", ("http://a", "http://b")),
        ("MEMORY_LIMIT", "256m", "memory_limit", 256 << 20),
    ],
)
def test_plain_names_are_aliases(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load(), field) == expected


def test_the_prefixed_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    monkeypatch.setenv("SANDBOX_PORT", "9001")
    assert load().port == 9001
    assert load(port=9002).port == 9002


DURATIONS = [entry.name for entry in entries() if entry.about.unit == "duration"]
SIZES = [entry.name for entry in entries() if entry.about.unit == "size"]


@pytest.mark.parametrize("name", DURATIONS)
def test_every_duration_has_units(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert getattr(load(**{name: "1m"}), name) == getattr(load(**{name: 60}), name) == 60
    monkeypatch.setenv(f"SANDBOX_{name.upper()}", "1500ms")
    assert getattr(load(), name) == 1.5


@pytest.mark.parametrize("name", SIZES)
def test_every_size_has_units(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert getattr(load(**{name: "1m"}), name) == getattr(load(**{name: 1 << 20}), name) == 1 << 20
    monkeypatch.setenv(f"SANDBOX_{name.upper()}", "64KiB")
    assert getattr(load(), name) == 64 << 10


def test_all_that_are_durations_and_sizes() -> None:
    fields = Settings.model_fields
    assert {name for name in fields if fields[name].annotation is float} == {
        *DURATIONS,
        "cpu_limit",
        "kubernetes_requests",
    }
    more = {"max_upload", "max_memory", "max_disk", "total_memory", "volume_size", "network_bytes",
            "network_rate", "audit_size"}  # fmt: skip
    assert {name for name in fields if name.endswith(("_limit", "_quota")) or name in more} == {
        *SIZES, "cpu_limit", "pids_limit",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"pool_size": 0}, (0, 0, 20)),
        ({"pool_size": 1}, (1, 1, 20)),
        ({"pool_size": 25}, (2, 25, 25)),
        ({"min_pool_size": 10}, (10, 10, 20)),
        ({"max_pool_size": 3}, (2, 3, 3)),
        ({"max_pool_size": 0}, (0, 0, 0)),
        ({"min_pool_size": 30}, (30, 30, 30)),
        ({"min_pool_size": 7, "max_pool_size": 9}, (7, 7, 9)),
        ({"pool_size": 1, "max_pool_size": 1}, (1, 1, 1)),
    ],
)
def test_pool_sizes_follow_the_one_that_was_set(
    given: dict[str, int], expected: tuple[int, int, int]
) -> None:
    pool = load(**given).pool()
    assert (pool.min_size, pool.size, pool.max_size) == expected


def test_pool_sizes_that_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_MIN_POOL_SIZE", "6")
    monkeypatch.setenv("POOL_SIZE", "3")
    with pytest.raises(InvalidRequest) as raised:
        load()
    assert "SANDBOX_MIN_POOL_SIZE=6, POOL_SIZE=3; change one of them" in raised.value.message
    assert "MAX" not in raised.value.message


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("SANDBOX_IDLE_TIMEOUT", "2x",
         "SANDBOX_IDLE_TIMEOUT: '2x' is not a duration: write 90s, 30m, 2h or 1d, or seconds;"
         " for example SANDBOX_IDLE_TIMEOUT=30m"),
        ("SANDBOX_COMMAND_TIMEOUT", "2h",
         "SANDBOX_COMMAND_TIMEOUT: Input should be less than or equal to 3600, not '2h'; for"
         " example SANDBOX_COMMAND_TIMEOUT=30s"),
        ("MEMORY_LIMIT", "much",
         "MEMORY_LIMIT: 'much' is not a size: write 512m or 2g, or bytes; for example"
         " MEMORY_LIMIT=512m"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_a_right_one(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as raised:
        load()
    assert raised.value.message == line


def test_in_code_it_is_an_argument() -> None:
    with pytest.raises(InvalidRequest, match=r"^idle_timeout: '2x' .* example idle_timeout='30m'$"):
        load(idle_timeout="2x")
    with pytest.raises(InvalidRequest, match=r"unknown setting 'memory'; did you mean memory_lim"):
        load(memory="1g")


def test_a_secret_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest) as raised:
        load(fleet_key=["hush"])
    assert "hush" not in str(raised.value)


def test_arguments_of_local_backend_are_the_settings_of_programs() -> None:
    of_programs = {entry.name for entry in entries() if IN_PROCESS in entry.about.roles}
    assert set(LocalSettings.__annotations__) == of_programs


def test_a_keyword_that_is_no_setting() -> None:
    with pytest.raises(TypeError, match=r"no setting 'memory'; did you mean memory_limit"):
        LocalBackend(memory="1g")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no setting 'port'$"):
        LocalBackend(port=1)  # type: ignore[call-arg]


def test_a_program_is_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would have joined the fleet, or asked for keys, where it shares a server's settings."""
    monkeypatch.setenv("SANDBOX_ROLE", "worker")
    monkeypatch.setenv("SANDBOX_HOST", "0.0.0.0")
    assert local_settings(state_dir=tmp_path).role == "standalone"


def test_a_settings_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "SANDBOX_PORT": "1"})
    file = tmp_path / "x.env"
    file.write_text(
        "# a comment\nSANDBOX_PORT=2\nPOOL_SIZE=3\n"
        'SANDBOX_ENVIRONMENTS=\'{"node": "node:20"}\'\nSANDBOX_POLICY="open"\n'
    )
    read_into_environment(file)
    found = load()
    assert (found.port, found.pool_size, found.policy) == (1, 3, "open")
    assert found.environments == {"node": "node:20"}
    file.write_text("SANDBOX_PORT=2\nsomething else\n")
    with pytest.raises(InvalidRequest, match=r"x\.env, line 2: write NAME=value"):
        read_into_environment(file)
    with pytest.raises(InvalidRequest, match="No such file"):
        read_into_environment(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SANDBOX_PORT", "http", "SANDBOX_PORT: "),
        ("SANDBOX_PORT", "70000", "SANDBOX_PORT: "),
        ("PORT", "x", "PORT: "),
        ("SANDBOX_MEMORY_LIMIT", "much", "SANDBOX_MEMORY_LIMIT: "),
        ("SANDBOX_MEMORY_LIMIT", "m", "SANDBOX_MEMORY_LIMIT: "),
        ("SANDBOX_MEMORY_LIMIT", "0", "SANDBOX_MEMORY_LIMIT: "),
        ("SANDBOX_DISK_LIMIT", "1e400g", "SANDBOX_DISK_LIMIT: "),
        ("SANDBOX_IDLE_TIMEOUT", "-1", "SANDBOX_IDLE_TIMEOUT: "),
        ("SANDBOX_RUNTIME", "podman", "SANDBOX_RUNTIME: "),
        ("SANDBOX_NETWORK", "host", "SANDBOX_NETWORK: "),
        ("SANDBOX_ENVIRONMENTS", "python=x", "SANDBOX_ENVIRONMENTS: "),
        ("SANDBOX_WORKER_ID", "../x", "SANDBOX_WORKER_ID: "),
        ("SANDBOX_OUTPUT_LIMIT", "10g", "SANDBOX_OUTPUT_LIMIT: "),
        ("SANDBOX_IDLE_TIMEOUT", "1e9d", "SANDBOX_IDLE_TIMEOUT: "),
        ("SANDBOX_ALLOWED_HOSTS", "a.example, http://b.example:80", "'http://b.example:80' is not"),
        ("SANDBOX_ADVERTISE", "worker-1:5000", "write http://host:port"),
        ("WORKERS", "http://a,b", "'b' is not a URL"),
        ("SANDBOX_POLICIES", '{"node": "strict"}', "'node' is not in SANDBOX_ENVIRONMENTS"),
        ("SANDBOX_ROLE", "worker", "a worker needs SANDBOX_REDIS_URL"),
        ("SANDBOX_ROLE", "captain", "SANDBOX_ROLE: "),
        ("SANDBOX_HAND_OVER", "true", "SANDBOX_HAND_OVER: boxes of auto stay on their machine"),
    ],
)
def test_a_bad_value_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as raised:
        load()
    line = raised.value.message
    assert told in line
    assert "\n" not in line


@pytest.mark.parametrize("keys", ["key-without-a-tenant", "a:same,b:same", "a b:key"])
def test_bad_keys_stop_the_start_and_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("SANDBOX_API_KEYS", keys)
    with pytest.raises(InvalidRequest, match="SANDBOX_API_KEYS: API key") as raised:
        asyncio.run(main_module.serve(load(), on_listening=never))
    assert keys not in str(raised.value)
    assert "same" not in str(raised.value)


async def never(url: str, sandboxes: Tenants, previews: object) -> None:
    raise AssertionError("it listens")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
async def test_no_open_door(host: str, tmp_path: Path) -> None:
    def found(**more: object) -> Settings:
        return load(host=host, port=0, state_dir=tmp_path, **more)

    for role in ("standalone", "coordinator"):
        with pytest.raises(InvalidRequest, match="without keys: make one with `sandbox keys"):
            await check_settings(found(role=role, redis_url="redis://127.0.0.1:1"))
    with pytest.raises(InvalidRequest, match="without keys: set SANDBOX_FLEET_KEY"):
        found(role="worker", redis_url="redis://127.0.0.1:1")
    assert await has_keys(found(api_keys=SECRET))
    assert await has_keys(found(jwt_keys="keys.json"))
    assert not found(insecure=True).is_reachable()
    store = open_key_store(found())
    await create(store, tenant="acme", name="", scopes=("use",), now=0.0)
    await store.close()
    assert await has_keys(found())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert load(host=host).host == host


def test_what_is_in_force_hides_keys() -> None:
    found = load(api_keys=SECRET).in_force()
    assert found["pool_size"] == 5
    assert set(found) == {"version", *Settings.model_fields}
    assert "key-of-acme" not in str(found)
    assert "key-of-acme" not in repr(load(api_keys=SECRET))


def test_a_frozen_thing() -> None:
    found: Any = load()
    with pytest.raises(ValueError, match="frozen"):
        found.port = 1


def test_the_process_ends_with_the_line_and_a_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sandbox_server"],
        env={"SANDBOX_POOL_SIZE": "many", "SANDBOX_STATE_DIR": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 125
    (line,) = ended.stderr.splitlines()
    assert line.startswith("sandbox: SANDBOX_POOL_SIZE: ")


@pytest.mark.parametrize(
    ("cgroup", "file", "limit", "sessions"),
    [
        ("0::/", "memory.max", "max", 2048),
        ("0::/a.slice/own.scope", "a.slice/memory.max", str(6 << 30), 512),
        ("0::/a.slice/own.scope", "a.slice/own.scope/memory.max", str(6 << 30), 512),
        ("4:memory:/own\n0::/", "memory/own/memory.limit_in_bytes", str(6 << 30), 512),
        ("4:memory:/of/the/host\n0::/", "memory/memory.limit_in_bytes", str(6 << 30), 512),
        ("4:memory:/own\n0::/", "memory/own/memory.limit_in_bytes", "9223372036854771712", 2048),
        ("0::/", "memory.max", str(64 << 20), 50),
    ],
)
def test_how_many_sessions_follows_from_the_memory(
    tmp_path: Path, cgroup: str, file: str, limit: str, sessions: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:  {24 << 20} kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"{cgroup}\n")
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{limit}\n")
    assert sessions_for(memory_bytes(tmp_path)) == sessions


def test_the_default_of_max_sessions_is_this_machines() -> None:
    assert load().max_sessions == sessions_for(memory_bytes())
    assert load(max_sessions=7).max_sessions == 7
