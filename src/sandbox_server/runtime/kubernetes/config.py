"""The objects of a box, as the Kubernetes API takes them. Pure functions."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import MAGIC_NUMBER
from typing import Any

from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.registry.environments import Pods
from sandbox_server.runtime.base import ENVIRONMENT, HOME, BoxSpec, Limits
from sandbox_server.runtime.registry import ClusterOptions
from sandbox_server.runtime.warden import zipapp

FOLDER = "/usr/lib/sandbox"
"""The warden's folder in a pod."""
_ZIPAPP = "warden.pyz"
_IN_EXEC = ("/usr/bin/env", "PATH=/usr/local/bin:/usr/bin:/bin")
"""What we run looks for python3 there: PATH may start with folders that the box can write to."""
CONTAINER = "box"
UID = 1000
DENY_ALL = "sandbox-deny-all"
STREAM_POLICY = "sandbox-stream"
PORT = 27183
"""Where wardens take streams over TCP."""

LABEL_MARK = "sandbox"
LABEL_OWNER = "sandbox.owner"
LABEL_BOX = "sandbox.box"
LABEL_NETWORK = "sandbox.network"
LABEL_WARDEN = "sandbox.warden"
LABEL_WARM = "sandbox.warm"
"""Of pods that nobody uses: a digest of what they are made from."""
NOTE_OWNER = "sandbox/owner"
NOTE_SANDBOX_CLAIM = "sandbox/sandbox-claim"
"""By which agent-sandbox has given the pod to us."""
NOTE_BOX = "sandbox/box"
"""Labels cannot hold every name, annotations can."""
NOTE_CLAIMS = "sandbox/claims"
NOTE_ENTRY = "sandbox/entry"
"""See Holding."""
MARKED = f"{LABEL_MARK}=1"

_NOT_TOLD = tuple(
    f"KUBERNETES_{name}"
    for name in (
        "PORT", "PORT_443_TCP", "PORT_443_TCP_ADDR", "PORT_443_TCP_PORT", "PORT_443_TCP_PROTO",
        "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTPS",
    )
)  # fmt: skip
"""Variables about the API server that the kubelet gives to every pod."""
_SLACK = 64 << 20
_EMPTY = "1Mi"
"""More than the block that an empty folder takes: a pod over the limit of a volume is evicted."""
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_GIT = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": WORKSPACE,
}
"""The kubelet makes /workspace as root's, writable by all, and git distrusts such folders."""


def pod_name(box_id: str) -> str:
    return f"sandbox-{box_id}"


def label_of(name: str) -> str:
    """A name as the value of a label, which is short and of few characters."""
    if _LABEL.fullmatch(name):
        return name
    return f"sha256-{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def of_owner(owner: str) -> str:
    """The selector of an owner's pods."""
    return f"{MARKED},{LABEL_OWNER}={label_of(owner)}"


def of_owners(owners: Sequence[str]) -> str:
    """The same for several."""
    names = ",".join(sorted(map(label_of, owners)))
    return f"{MARKED},{LABEL_OWNER} in ({names})"


def of_box(box_id: str) -> str:
    """The selector of a box's pod."""
    return f"{MARKED},{LABEL_BOX}={box_id}"


def setting(kind: str, name: str, value: str) -> dict[str, str]:
    """The operation of a patch that sets a label or an annotation."""
    return {"op": "add", "path": _pointer(kind, name), "value": value}


def unsetting(kind: str, name: str) -> dict[str, str]:
    return {"op": "remove", "path": _pointer(kind, name)}


def _pointer(kind: str, name: str) -> str:
    return f"/metadata/{kind}/{name.replace('/', '~1')}"


def relay_command() -> list[str]:
    return [*_IN_EXEC, *_warden(), "relay", "stderr=keep"]


def end_command() -> list[str]:
    """Ends the box at once."""
    return [*_IN_EXEC, *_warden(), "end"]


def _warden() -> list[str]:
    return ["python3", "-I", "-S", f"{FOLDER}/{_ZIPAPP}"]


def pod_manifest(spec: BoxSpec, box_id: str, options: ClusterOptions) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(box_id),
            "labels": {
                LABEL_MARK: "1",
                LABEL_OWNER: label_of(spec.owner),
                LABEL_BOX: box_id,
                LABEL_NETWORK: "cluster" if spec.has_interface else "none",
                LABEL_WARDEN: warden_map_name(),
                "app.kubernetes.io/managed-by": "agent-sandbox",
            },
            "annotations": {NOTE_OWNER: spec.owner, NOTE_BOX: box_id, NOTE_CLAIMS: "0"},
        },
        "spec": {
            **_placement(options, spec.pods),
            **_isolation(spec),
            "restartPolicy": "Never",
            # For who evicts it: we delete pods without. The warden takes no signals but the last.
            "terminationGracePeriodSeconds": math.ceil(options.eviction_s),
            "hostname": "sandbox",
            "containers": [_container(spec, box_id, options)],
            "volumes": _volumes(spec.limits),
        },
    }


def _placement(options: ClusterOptions, asked: Pods) -> dict[str, Any]:
    """asked: by the environment of the box."""
    found = {
        "runtimeClassName": asked.runtime_class or options.runtime_class,
        "nodeSelector": {**options.node_selector, **asked.node_selector},
        "tolerations": [
            *(dict(each) for each in options.tolerations),
            *(each.model_dump(by_alias=True, exclude_none=True) for each in asked.tolerations),
        ],
        "priorityClassName": asked.priority_class or options.priority_class,
        "imagePullSecrets": [{"name": options.pull_secret}] if options.pull_secret else [],
    }
    return {name: value for name, value in found.items() if value}


def _isolation(spec: BoxSpec) -> dict[str, Any]:
    """Names are resolved by nobody where a box has no network: they fail at once."""
    no_names = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({} if spec.has_interface else no_names),
    }


def _container(spec: BoxSpec, box_id: str, options: ClusterOptions) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": spec.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "/usr/bin/env",
            *(word for name in _NOT_TOLD for word in ("-u", name)),
            *_warden(),
            "pid1",
            *zipapp.warden_arguments(spec, box_id),
            f"file_bytes={spec.file_bytes}",
            *([f"port={PORT}"] if options.stream != "exec" else []),
        ],
        "workingDir": WORKSPACE,
        "env": [{"name": name, "value": value} for name, value in _environment(spec).items()],
        "resources": _resources(spec.limits, options.requests),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(spec),
    }


def _environment(spec: BoxSpec) -> dict[str, str]:
    # A dollar sign would begin a reference to another variable: $(NAME).
    found = {**ENVIRONMENT, **_GIT, **spec.user.variables, **spec.network_variables(), **spec.env}
    return {name: value.replace("$", "$$") for name, value in found.items()}


def _resources(limits: Limits, requests: float) -> dict[str, Any]:
    return {
        "limits": {
            "cpu": f"{round(limits.cpus * 1000)}m",
            "memory": str(limits.memory_bytes),
            "ephemeral-storage": str(limits.disk_bytes + _SLACK),
        },
        "requests": {
            "cpu": f"{max(1, round(limits.cpus * 1000 * requests))}m",
            "memory": str(round(limits.memory_bytes * requests)),
            "ephemeral-storage": str(round(limits.disk_bytes * requests)),
        },
    }


def _volumes(limits: Limits) -> list[dict[str, Any]]:
    return [
        {"name": "warden", "configMap": {"name": warden_map_name(), "defaultMode": 0o555}},
        {"name": "workspace", "emptyDir": {"sizeLimit": str(limits.disk_bytes)}},
        _in_memory("tmp", limits.tmp_bytes),
        _in_memory("shm", limits.shm_bytes),
        _in_memory("home", limits.home_bytes),
        {"name": "nothing", "emptyDir": {"sizeLimit": _EMPTY}},
    ]


def _in_memory(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}


def _mounts(spec: BoxSpec) -> list[dict[str, Any]]:
    homes = dict.fromkeys((spec.user.home, HOME))
    return [
        {"name": "warden", "mountPath": FOLDER, "readOnly": True},
        {
            "name": "warden",
            "mountPath": f"/usr/local/bin/{zipapp.SAVE_ARTIFACT}",
            "subPath": zipapp.SAVE_ARTIFACT,
            "readOnly": True,
        },
        {"name": "workspace", "mountPath": WORKSPACE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "nothing", "mountPath": "/dev/mqueue", "readOnly": True},
        *({"name": "home", "mountPath": home} for home in homes),
    ]


@cache
def warden_map_name() -> str:
    """The same for the same sources and Python, so that servers of one version share it."""
    parts = (zipapp.warden_version(), zipapp.save_artifact(), MAGIC_NUMBER.hex())
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"sandbox-warden-{digest[:12]}"


def warden_map() -> dict[str, Any]:
    """The ConfigMap with the warden, which brings it into any image."""
    content = {
        _ZIPAPP: zipapp.compiled_zipapp(),
        zipapp.SAVE_ARTIFACT: zipapp.save_artifact().encode(),
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": warden_map_name(), "labels": {LABEL_MARK: "1"}},
        "immutable": True,
        "binaryData": {name: base64.b64encode(data).decode() for name, data in content.items()},
    }


def deny_all() -> dict[str, Any]:
    """The NetworkPolicy of boxes without a network. Whether it holds is up to the cluster's CNI."""
    return _policy(DENY_ALL, {"policyTypes": ["Ingress", "Egress"]})


def stream_policy() -> dict[str, Any]:
    """Lets streams into pods under deny_all(); policies add up. From anywhere: where servers are is
    not known, and the warden answers to nobody without a key."""
    ingress = [{"ports": [{"protocol": "TCP", "port": PORT}]}]
    return _policy(STREAM_POLICY, {"policyTypes": ["Ingress"], "ingress": ingress})


def _policy(name: str, rules: Mapping[str, Any]) -> dict[str, Any]:
    pods = {"matchLabels": {LABEL_MARK: "1", LABEL_NETWORK: "none"}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {LABEL_MARK: "1"}},
        "spec": {"podSelector": pods, **rules},
    }
