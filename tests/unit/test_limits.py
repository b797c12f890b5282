"""What sessions may ask for, and what they get: the server's, an environment's, their own."""

import json
import math
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import CreateSessionRequest, LimitValues, SessionLimits, checked
from sandbox_server.api.operations import parse_body
from sandbox_server.registry.environments import BoxLimits, Environment
from sandbox_server.runtime.base import Enforcement
from sandbox_server.sessions.rules import SessionRules, SessionTerms
from sandbox_server.settings import load

MIB = 1 << 20
DEFAULT: LimitValues = {
    "memory": 512 * MIB,
    "cpus": 0.5,
    "pids": 256,
    "disk": 1024 * MIB,
    "command_timeout_s": 30.0,
}
ENFORCED = {"docker": Enforcement(), "bubblewrap": Enforcement()}


def rules(**changes: Any) -> SessionRules:
    given = {"default": DEFAULT, "idle_timeout_s": 600.0, "providers": ENFORCED, **changes}
    return SessionRules(**given)


def terms(of: SessionRules, **asked: Any) -> SessionTerms:
    nothing: dict[str, Any] = {
        "environment": None,
        "provider": None,
        "limits": {},
        "idle_timeout_s": None,
    }
    return of.terms(**{**nothing, **asked})


HOSTILE: dict[str, list[Any]] = {
    "memory": [
        *("1e400", "-1g", "nan", "", "1x", "0", "63m", "1" * 70),
        *(0, -1, 2**62 + 1, 10**4000, 1e9, 1.5, math.nan, math.inf, True, [1], {}),
    ],
    "disk": [0, "1m", "1e400", -5, 10**4000, False],
    "cpus": [0, -1, math.nan, math.inf, 1e300, 10**400, "1", True],
    "pids": [0, 15, -1, 16.5, "64", 2**64, True],
    "command_timeout_s": [0, -1, 3601, "2h", "1e400", math.nan, True],
    "ram": [1],
    "memory_bytes": [512 * MIB],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in HOSTILE.items() for value in values],
    ids=lambda value: str(value)[:20],
)
def test_what_nobody_can_ask_for(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as told:
        checked(CreateSessionRequest, limits={name: value})
    assert f"limits.{name}" in told.value.message
    assert len(told.value.message) < 300
    with pytest.raises(InvalidRequest):
        parse_body(CreateSessionRequest, json.dumps({"limits": {name: value}}).encode())


@pytest.mark.parametrize("limits", [[], "x", 1, True])
def test_limits_that_are_none(limits: Any) -> None:
    with pytest.raises(InvalidRequest, match="limits"):
        checked(CreateSessionRequest, limits=limits)
    with pytest.raises(InvalidRequest, match="limits"):
        parse_body(CreateSessionRequest, json.dumps({"limits": limits}).encode())


def test_units() -> None:
    asked = {"memory": "1.5g", "disk": "64MiB", "cpus": 1, "pids": 16, "command_timeout_s": "2m"}
    expected = {"memory": 1536 * MIB, "disk": 64 * MIB, "cpus": 1, "pids": 16,
                "command_timeout_s": 120}  # fmt: skip
    request = parse_body(CreateSessionRequest, json.dumps({"limits": asked}).encode())
    assert request.limits.given() == expected
    assert checked(CreateSessionRequest, limits=asked).limits.given() == expected
    assert SessionLimits().given() == {}


def test_a_request_goes_before_the_environment_and_that_before_the_server() -> None:
    large = Environment(
        name="large",
        limits=BoxLimits(memory="2g", pids=512, command_timeout="5m", idle_timeout="1h"),
    )
    of = rules(environments={"large": large})
    assert terms(of).limits == DEFAULT
    usual = terms(of, environment="large")
    changed = {"memory": 2048 * MIB, "pids": 512, "command_timeout_s": 300.0}
    assert (usual.limits, usual.idle_timeout_s) == ({**DEFAULT, **changed}, 3600)
    own = terms(of, environment="large", limits={"memory": 256 * MIB}, idle_timeout_s=7)
    assert own.limits == {**usual.limits, "memory": 256 * MIB}
    assert own.idle_timeout_s == 7
    with pytest.raises(InvalidRequest, match="more than a session may have, 2 GiB"):
        terms(of, environment="large", limits={"memory": 4096 * MIB})
    with pytest.raises(InvalidRequest, match="more than a session may have, 512 MiB"):
        terms(of, limits={"memory": 513 * MIB})


def test_a_maximum_that_is_set_binds_environments_too() -> None:
    large = Environment(name="large", limits=BoxLimits(memory="2g"))
    of = rules(environments={"large": large}, most={"memory": 1024 * MIB})
    with pytest.raises(InvalidRequest, match="2 GiB is more than a session may have, 1 GiB"):
        terms(of, environment="large")
    assert terms(of, limits={"memory": 1024 * MIB}).limits["memory"] == 1024 * MIB


def test_one_session_has_no_more_than_all_may_have() -> None:
    of = rules(most={"memory": 4096 * MIB}, total_memory=1024 * MIB)
    with pytest.raises(InvalidRequest, match="more than a session may have, 1 GiB"):
        terms(of, limits={"memory": 2048 * MIB})


def test_a_limit_without_effect_is_refused_unless_it_is_the_usual_one() -> None:
    weak = Enforcement(cpu="no control group", absent=frozenset({"cpu"}))
    of = rules(providers={"docker": Enforcement(), "bubblewrap": weak})
    assert terms(of, limits={"cpus": 0.25}).limits["cpus"] == 0.25
    assert terms(of, provider="bubblewrap", limits={"cpus": 0.5}).provider == "bubblewrap"
    with pytest.raises(InvalidRequest, match=r"limits\.cpus has no effect on bubblewrap boxes"):
        terms(of, provider="bubblewrap", limits={"cpus": 0.25})


def test_the_provider_of_an_environment() -> None:
    node = Environment(name="node", provider="bubblewrap")
    far = Environment(name="far", provider="e2b")
    of = rules(environments={"node": node, "far": far})
    assert terms(of).provider == "docker"
    assert terms(of, provider="bubblewrap").provider == "bubblewrap"
    assert terms(of, environment="node").provider == "bubblewrap"
    with pytest.raises(InvalidRequest, match="environment 'node' needs provider 'bubblewrap'"):
        terms(of, environment="node", provider="docker")
    with pytest.raises(InvalidRequest, match=r"`pip install agent-sandbox\[e2b\]`"):
        terms(of, environment="far")


def test_limits_that_were_not_set_follow_the_maximum() -> None:
    assert load(max_memory="256m").memory_limit == 256 * MIB
    assert load(total_memory="128m").memory_limit == 128 * MIB
    assert load(max_cpus=0.25).cpu_limit == 0.25
    assert load(max_pids=64, max_disk="64m").limits().disk_bytes == 64 * MIB
    assert load(max_memory="4g").memory_limit == 512 * MIB


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"memory_limit": "1g", "max_memory": "512m"}, "MEMORY_LIMIT=1g is more than .*=512m"),
        ({"max_memory": "2g", "total_memory": "1g"}, "MAX_MEMORY=2g is more than .*TOTAL_MEMORY"),
        ({"pids_limit": 2048, "max_pids": 1024}, "PIDS_LIMIT=2048 is more than .*=1024"),
        ({"max_cpus": float("nan")}, "max_cpus"),
        ({"max_memory": "-1g"}, "max_memory"),
        ({"total_memory": 0}, "total_memory"),
        ({"max_pids": 4}, "max_pids"),
        ({"providers": "docker,dokcer"}, "unknown runtime 'dokcer'.*did you mean docker"),
        ({"providers": "auto"}, "auto is no provider"),
        ({"providers": "docker", "runtime": "bubblewrap"}, "RUNTIME=bubblewrap is not the first"),
    ],
)
def test_settings_that_contradict(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        load(**given)


def test_the_first_provider_is_the_default() -> None:
    assert load().provider_names() == ("auto",)
    assert load(runtime="docker").provider_names() == ("docker",)
    both = load(providers="bubblewrap, docker,docker", runtime="bubblewrap")
    assert both.provider_names() == ("bubblewrap", "docker")
