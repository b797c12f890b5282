"""The chart of deploy/kubernetes says what it should, and the plain manifests say the same."""

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from sandbox_server.runtime.kubernetes.config import deny_all, stream_policy
from scripts.manifests import FOLDER, manifests
from tests.deploy.chart import CHART, SETS, defaults, rendered
from tests.deploy.stack import ROOT

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
PARTS = ("coordinator", "worker", "redis")


@pytest.fixture(params=SETS, scope="module")
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(SETS[request.param])


def pod_specs(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in {"Deployment", "StatefulSet"}
    }


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def rights(role: dict[str, Any]) -> dict[str, set[str]]:
    return {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}


def test_no_object_is_there_twice(objects: list[dict[str, Any]]) -> None:
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in objects
    ]
    assert len(set(names)) == len(names)


def test_pods_are_hardened(objects: list[dict[str, Any]]) -> None:
    """As the pod security standard `restricted` demands, and more."""
    for part, spec in pod_specs(objects).items():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is (part == "worker")
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= container["resources"].keys()
        assert {"readinessProbe", "livenessProbe"} <= container.keys()


def test_no_variable_is_there_twice(objects: list[dict[str, Any]]) -> None:
    for spec in pod_specs(objects).values():
        names = [each["name"] for each in spec["containers"][0].get("env", ())]
        assert len(set(names)) == len(names)


def test_keys_are_nowhere_but_in_the_secret(objects: list[dict[str, Any]]) -> None:
    assert not of_kind(objects, "Secret")
    for spec in pod_specs(objects).values():
        for each in spec["containers"][0]["env"]:
            if each["name"].endswith(("_KEY", "_KEYS", "_PASSWORD", "_AUTH")):
                assert "secretKeyRef" in each["valueFrom"]


def test_servers_stop_within_their_time() -> None:
    """And calls that wait in a coordinator may wait out their patience."""
    values, margin_s = defaults(), 10
    coordinators, workers = values["coordinators"], values["workers"]
    in_all_s = values["terminationGracePeriodSeconds"]
    assert seconds(coordinators["settings"]["SANDBOX_PATIENCE"]) < seconds(
        coordinators["drainTimeout"]
    )
    needed_s = coordinators["preStopSeconds"] + seconds(coordinators["drainTimeout"])
    assert in_all_s >= needed_s + margin_s
    assert in_all_s >= seconds(workers["drainTimeout"]) + margin_s


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def test_rights_are_those_of_the_document(objects: list[dict[str, Any]]) -> None:
    """In the namespace of boxes alone."""
    (role,) = of_kind(objects, "Role")
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    (written,) = [text for text in blocks if "kind: Role" in text]
    assert rights(role) == rights(yaml.safe_load(written))
    (account,) = of_kind(objects, "ServiceAccount")
    (binding,) = of_kind(objects, "RoleBinding")
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"]
    assert role["metadata"]["namespace"] != account["metadata"]["namespace"]
    assert not of_kind(objects, "ClusterRole")


def test_boxes_have_the_policies_that_workers_would_make(objects: list[dict[str, Any]]) -> None:
    specs = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "NetworkPolicy")}
    for made in (deny_all(), stream_policy()):
        assert specs[made["metadata"]["name"]] == made["spec"]


def test_the_monitor_finds_both_services() -> None:
    objects = rendered({"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})
    (monitor,) = of_kind(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (among,) = monitor["spec"]["selector"]["matchExpressions"]
    found = [
        each
        for each in of_kind(objects, "Service")
        if wanted <= each["metadata"]["labels"].items()
        and each["metadata"]["labels"][among["key"]] in among["values"]
    ]
    ports = {port["name"] for each in found for port in each["spec"]["ports"]}
    assert len(found) == 2
    assert monitor["spec"]["endpoints"][0]["port"] in ports


@pytest.mark.parametrize("name", SETS)
def test_values_follow_their_schema(name: str) -> None:
    jsonschema.validate(defaults(), SCHEMA)
    jsonschema.validate(SETS[name], SCHEMA)


@pytest.mark.parametrize(
    "wrong",
    [{"worker": {}}, {"workers": {"kind": "DaemonSet"}}, {"settings": {"SANDBOX_LEASE": 10}}],
)
def test_slips_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_manifests_are_the_chart() -> None:
    """If not, run scripts/manifests.py."""
    rendered()  # Skips where the chart cannot be rendered.
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == manifests()
