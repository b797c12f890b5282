"""The objects of kubernetes-sigs/agent-sandbox that boxes come from where a cluster has it.

A SandboxWarmPool keeps pods of a SandboxTemplate ready, and a SandboxClaim takes one of them. A pod
that is warm belongs to nobody: who has it is written on it after the claim, and its variables are
those of its template, as variables in a claim would mean a new pod. Pure functions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.kubernetes import config
from sandbox_server.runtime.kubernetes.failures import line
from sandbox_server.runtime.registry import ClusterOptions

GROUP = "extensions.agents.x-k8s.io/v1beta1"
SANDBOXES = "agents.x-k8s.io/v1beta1"
_POD_NAME = "agents.x-k8s.io/pod-name"
_WARM_S = 86400.0
"""How long a warden waits for its first owner, who then says how long he may be silent. A pod that
nobody has wanted for so long ends, and agent-sandbox makes another."""
_FINISHED_S = 60
"""A claim whose pod has ended, as nobody talks to it, is removed after so long."""

Object = dict[str, Any]


def warm_pod(spec: BoxSpec, options: ClusterOptions) -> Object:
    """The pod of a box that is nobody's yet, as a template has it."""
    nobodys = replace(spec, owner="", deadman_s=_WARM_S)
    made = config.pod_manifest(nobodys, "", options)
    labels = made["metadata"]["labels"]
    for of_a_box in (config.LABEL_OWNER, config.LABEL_BOX):
        del labels[of_a_box]
    notes = {config.NOTE_CLAIMS: "0"}
    return {"metadata": {"labels": labels, "annotations": notes}, "spec": made["spec"]}


def ownership(owner: str, box_id: str) -> list[dict[str, str]]:
    """What makes a pod that was claimed a box of ours, as a patch."""
    return [
        config.setting("labels", config.LABEL_OWNER, config.label_of(owner)),
        config.setting("labels", config.LABEL_BOX, box_id),
        config.setting("annotations", config.NOTE_OWNER, owner),
        config.setting("annotations", config.NOTE_BOX, box_id),
        config.setting("annotations", config.NOTE_SANDBOX_CLAIM, config.pod_name(box_id)),
    ]


def pool_name(pod: Object) -> str:
    """The same for the same pods: servers with the same settings share a pool."""
    digest = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()
    return f"sandbox-{digest[:12]}"


def template(pod: Object) -> Object:
    """Its network is as with our own pods: the policy that the controller would make by itself lets
    a box reach the internet."""
    spec = {
        "podTemplate": pod,
        "networkPolicyManagement": "Unmanaged",
        "envVarsInjectionPolicy": "Disallowed",
    }
    return _object("SandboxTemplate", pool_name(pod), spec)


def warm_pool(pod: Object, size: int) -> Object:
    name = pool_name(pod)
    spec = {
        "replicas": size,
        "sandboxTemplateRef": {"name": name},
        "updateStrategy": {"type": "OnReplenish"},
    }
    return _object("SandboxWarmPool", name, spec)


def claim(owner: str, box_id: str, pool: str) -> Object:
    made = _object(
        "SandboxClaim",
        config.pod_name(box_id),
        {
            "warmPoolRef": {"name": pool},
            "lifecycle": {"shutdownPolicy": "Delete", "ttlSecondsAfterFinished": _FINISHED_S},
        },
    )
    about = made["metadata"]
    about["labels"] |= {config.LABEL_OWNER: config.label_of(owner), config.LABEL_BOX: box_id}
    about["annotations"] = {config.NOTE_OWNER: owner, config.NOTE_BOX: box_id}
    return made


def _object(kind: str, name: str, spec: Object) -> Object:
    labels = {config.LABEL_MARK: "1", config.LABEL_WARDEN: config.warden_map_name()}
    return {
        "apiVersion": GROUP,
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def sandbox_of(claimed: Mapping[str, Any]) -> str:
    """The name of the Sandbox that a claim has got; empty as long as it has none."""
    return str(((claimed.get("status") or {}).get("sandbox") or {}).get("name") or "")


def is_ready(claimed: Mapping[str, Any]) -> bool:
    return _ready(claimed).get("status") == "True" and bool(sandbox_of(claimed))


def why_not_ready(claimed: Mapping[str, Any]) -> str:
    """In the words of the controller; empty if it has said nothing, as one that does not run."""
    found = _ready(claimed)
    return ": ".join(part for part in (found.get("reason"), line(found.get("message", ""))) if part)


def _ready(claimed: Mapping[str, Any]) -> Mapping[str, Any]:
    for condition in (claimed.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready":
            return dict(condition)
    return {}


def pod_of(sandbox: Mapping[str, Any]) -> str:
    """The name of a Sandbox's pod, which is its own unless it says another."""
    about = sandbox["metadata"]
    return str((about.get("annotations") or {}).get(_POD_NAME) or about["name"])
