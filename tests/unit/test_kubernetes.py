"""The pure parts of the kubernetes runtime: manifests, kubeconfigs, what errors mean."""

import asyncio
import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from sandbox_sdk.protocol import errors
from sandbox_server.registry.environments import Pods
from sandbox_server.runtime.base import BoxSpec, BoxUser, Limits
from sandbox_server.runtime.kubernetes import Access
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.config import (
    deny_all,
    label_of,
    pod_manifest,
    relay_command,
    warden_map,
    warden_map_name,
)
from sandbox_server.runtime.kubernetes.failures import (
    ApiError,
    error_for,
    is_running,
    unschedulable,
    why_ended,
    why_not_started,
)
from sandbox_server.runtime.kubernetes.stream import open_exec
from sandbox_server.runtime.registry import ClusterOptions
from sandbox_server.runtime.warden.zipapp import compiled_zipapp

SPEC = BoxSpec(owner="worker-1", limits=Limits(cpus=0.5, memory_bytes=512 << 20))


def manifest(spec: BoxSpec = SPEC, **options: Any) -> dict[str, Any]:
    return pod_manifest(spec, "0123", ClusterOptions(**options))


def test_a_pod_has_no_power() -> None:
    spec = manifest()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()
    kinds = {kind for volume in spec["volumes"] for kind in volume} - {"name"}
    assert kinds == {"configMap", "emptyDir"}


def test_limits_and_requests() -> None:
    (container,) = manifest(requests=0.5)["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == "500m"
    assert container["resources"]["requests"]["cpu"] == "250m"
    assert container["resources"]["limits"]["memory"] == str(512 << 20)
    assert container["resources"]["requests"]["memory"] == str(256 << 20)
    assert f"file_bytes={SPEC.file_bytes}" in container["command"]
    sizes = {
        volume["name"]: volume["emptyDir"]["sizeLimit"]
        for volume in manifest()["spec"]["volumes"]
        if "emptyDir" in volume
    }
    limits = SPEC.limits
    assert sizes == {
        "workspace": str(limits.disk_bytes),
        "tmp": str(limits.tmp_bytes),
        "shm": str(limits.shm_bytes),
        "home": str(limits.home_bytes),
        "nothing": "1Mi",
    }


def test_what_the_operator_chooses() -> None:
    tolerations = [{"key": "sandboxes", "operator": "Exists"}]
    spec = manifest(
        runtime_class="gvisor",
        node_selector={"pool": "a"},
        tolerations=tolerations,
        priority_class="low",
        pull_secret="registry",
    )["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["nodeSelector"] == {"pool": "a"}
    assert spec["tolerations"] == tolerations
    assert spec["priorityClassName"] == "low"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert not {"runtimeClassName", "nodeSelector", "tolerations"} & manifest()["spec"].keys()


def test_what_an_environment_adds() -> None:
    """Its classes count instead of the operator's; labels and taints are added to his."""
    pods = Pods.model_validate(
        {
            "priority_class": "urgent",
            "runtime_class": "kata",
            "node_selector": {"disk": "fast", "pool": "b"},
            "tolerations": [{"key": "gpu", "effect": "NoExecute", "tolerationSeconds": 60}],
        }
    )
    usual = {"key": "sandboxes", "operator": "Exists"}
    spec = manifest(
        replace(SPEC, pods=pods),
        runtime_class="gvisor",
        node_selector={"pool": "a", "zone": "x"},
        tolerations=[usual],
        priority_class="low",
    )["spec"]
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("urgent", "kata")
    assert spec["nodeSelector"] == {"disk": "fast", "pool": "b", "zone": "x"}
    asked = {"key": "gpu", "effect": "NoExecute", "tolerationSeconds": 60}
    assert spec["tolerations"] == [usual, asked]


@pytest.mark.parametrize(
    "slip",
    [
        {"priority_class": "Not A Name"},
        {"node_selector": {"pool": "a b"}},
        {"node_selector": {"a/b/c": "x"}},
        {"node_selector": {"pool": 1}},
        {"tolerations": [{"key": "gpu", "operator": "Equals"}]},
        {"tolerations": [{"key": "gpu", "efect": "NoExecute"}]},
        {"priority": "high"},
    ],
    ids=str,
)
def test_a_slip_in_an_environment_is_found(slip: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Pods.model_validate(slip)


def test_only_pods_without_a_network_are_under_the_policy() -> None:
    selected = deny_all()["spec"]["podSelector"]["matchLabels"].items()
    assert deny_all()["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert selected <= manifest()["metadata"]["labels"].items()
    assert selected <= manifest(replace(SPEC, network="allowlist"))["metadata"]["labels"].items()
    bridge = manifest(replace(SPEC, network="bridge"))
    assert not selected <= bridge["metadata"]["labels"].items()
    assert "dnsPolicy" not in bridge["spec"]
    assert manifest()["spec"]["dnsPolicy"] == "None"


def test_variables_are_taken_as_they_are() -> None:
    (container,) = manifest(replace(SPEC, env={"A": "$(HOME) $x"}))["spec"]["containers"]
    assert {"name": "A", "value": "$$(HOME) $$x"} in container["env"]


def test_a_home_elsewhere_is_at_the_usual_place_too() -> None:
    spec = replace(SPEC, user=BoxUser(name="user", home="/home/user"))
    (container,) = manifest(spec)["spec"]["containers"]
    homes = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "home"]
    assert homes == ["/home/user", "/home/sandboxuser"]


def test_the_warden_fits_into_a_config_map() -> None:
    made = warden_map()
    assert made["immutable"] is True
    assert set(made["binaryData"]) == {"warden.pyz", "save_artifact"}
    assert len(json.dumps(made)) < 1 << 20
    assert warden_map_name() in json.dumps(manifest())


def test_a_compiled_warden_runs_on_any_python(tmp_path: Path) -> None:
    """With the code of a Python that there is not, its sources are used."""
    other = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(compiled_zipapp())) as made, zipfile.ZipFile(other, "w") as of:
        for name in made.namelist():
            data = made.read(name)
            of.writestr(name, b"\0\0\r\n" + data[4:] if name.endswith(".pyc") else data)
    for number, content in enumerate((compiled_zipapp(), other.getvalue())):
        (tmp_path / str(number)).write_bytes(content)
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(tmp_path / str(number)), "nothing"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stderr == "usage: warden.pyz pid1|relay|end\n"


def test_a_relay_is_not_looked_for_where_the_user_can_write() -> None:
    program, path, *_ = relay_command()
    assert program.startswith("/")
    assert path == "PATH=/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize("name", ["worker-1", "a.b_c", "x" * 63])
def test_names_that_are_labels(name: str) -> None:
    assert label_of(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a/b", "ä", "x" * 64])
def test_names_that_are_none(name: str) -> None:
    assert label_of(name).startswith("sha256-")
    assert len(label_of(name)) < 64


def refused(status: int, message: str) -> errors.SandboxError:
    body = json.dumps({"kind": "Status", "reason": "Forbidden", "message": message}).encode()
    return error_for(ApiError.of(status, body), "create pods", "boxes")


@pytest.mark.parametrize(
    ("status", "message", "kind", "says"),
    [
        (403, "pods x is forbidden: exceeded quota: few, requested: pods=1", errors.Capacity,
         "the quota of namespace boxes is used up: .*few"),
        (403, 'User "u" cannot create resource "pods"', errors.RuntimeUnavailable,
         'may not create pods in namespace boxes: .*"u"'),
        (401, "Unauthorized", errors.RuntimeUnavailable, "does not know this server"),
        (404, 'namespaces "boxes" not found', errors.RuntimeUnavailable, "boxes does not exist"),
        (422, "Pod is invalid: spec.x", errors.RuntimeUnavailable, r"\(422\): Pod is invalid"),
    ],
)  # fmt: skip
def test_refusals(status: int, message: str, kind: type[errors.SandboxError], says: str) -> None:
    error = refused(status, message)
    assert type(error) is kind
    with pytest.raises(kind, match=says):
        raise error


def test_an_answer_that_is_not_json() -> None:
    assert ApiError.of(502, b"<html>bad gateway").message == "<html>bad gateway"


def pod(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    if state is not None:
        status["containerStatuses"] = [{"name": "box", "state": state}]
    return {"metadata": {}, "status": status}


def test_states_of_pods() -> None:
    assert is_running(pod({"running": {}}))
    assert not is_running(pod())
    assert why_not_started(pod({"waiting": {"reason": "ContainerCreating"}}), "i") is None
    pulling = pod({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}})
    assert "image i does not start: ImagePullBackOff" in str(why_not_started(pulling, "i"))
    failed = {"reason": "StartError", "message": "exec: python3: executable file not found"}
    error = why_not_started(pod({"terminated": {**failed, "exitCode": 128}}), "i")
    assert isinstance(error, errors.InvalidRequest)
    evicted = pod(phase="Failed", reason="Evicted", message="usage of EmptyDir exceeds the limit")
    assert why_ended(evicted) == "Evicted, usage of EmptyDir exceeds the limit"
    assert why_ended(pod({"terminated": {"reason": "OOMKilled"}})) == "OOMKilled"
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    assert unschedulable(pod(conditions=[condition])) == "0/2 nodes are available"
    assert unschedulable(pod()) == ""


@pytest.mark.parametrize(
    ("deleted_at", "ready", "runs"),
    [("2999-01-01T00:00:00Z", "True", True), ("2999-01-01T00:00:00Z", "False", False),
     ("2020-01-01T00:00:00Z", "True", False)],
    ids=["being evicted", "node away", "over"],
)  # fmt: skip
def test_a_pod_that_is_being_deleted(deleted_at: str, ready: str, runs: bool) -> None:
    """It runs on as long as its grace period, if its node reports."""
    status = {**pod({"running": {}})["status"], "conditions": [{"type": "Ready", "status": ready}]}
    assert is_running({"metadata": {"deletionTimestamp": deleted_at}, "status": status}) is runs


def config(**user: Any) -> dict[str, Any]:
    return {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user}],
    }


async def test_tokens_of_a_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "config"
    (tmp_path / "token").write_text("of a file\n")
    (tmp_path / "helper").write_text(
        '#!/bin/sh\ntest "$KUBERNETES_EXEC_INFO" && echo \'{"status": {"token": "\'$1$A\'"}}\''
    )
    (tmp_path / "helper").chmod(0o755)
    helper = {"apiVersion": "v1", "command": "./helper", "args": ["of "],
              "env": [{"name": "A", "value": "a program"}]}  # fmt: skip
    for user, token in (
        ({"token": "fixed"}, "fixed"),
        ({"tokenFile": "token"}, "of a file"),
        ({"exec": helper}, "of a program"),
        ({}, ""),
    ):
        path.write_text(yaml.safe_dump(config(**user)))
        access = Access.find(str(path))
        assert (access.url, access.namespace) == ("http://127.0.0.1:1", "n")
        assert await access.token.value() == token
    assert Access.find(str(path), namespace="other").namespace == "other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("current-context: x", "contexts has no 'x'"),
        ("- a list", "is no usable kubeconfig"),
        (yaml.safe_dump(config(**{"auth-provider": {}})), "use exec"),
    ],
)
def test_kubeconfigs_that_are_none(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(errors.RuntimeUnavailable, match=says):
        Access.find(str(tmp_path / "config"))
    with pytest.raises(errors.RuntimeUnavailable, match="there is no file"):
        Access.find(str(tmp_path / "none"))


def test_inside_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "namespace").write_text("mine\n")
    (tmp_path / "token").write_text("t")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(errors.RuntimeUnavailable, match="KUBERNETES_SERVICE_HOST"):
        Access.in_cluster(tmp_path)


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ('{"kind": "Status", "reason": "NotFound", "message": "pods \\"box\\" not found"}',
         errors.SessionLost),
        ("pod does not exist", errors.RuntimeUnavailable),
    ],
    ids=["the API server", "a kubelet that has just started"],
)  # fmt: skip
async def test_who_says_that_there_is_no_such_pod(
    tmp_path: Path, says: str, kind: type[errors.SandboxError]
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 404 Not Found\r\ncontent-length: {len(says)}\r\n\r\n"
        writer.write(f"{head}{says}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    api = Api(Access.find(str(tmp_path / "config")))
    with pytest.raises(kind):
        await open_exec(api, "box", ["true"], gone="it is gone")
    await api.close()
    server.close()
