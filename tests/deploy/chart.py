"""The chart of deploy/kubernetes, rendered."""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.stack import ROOT

CHART = ROOT / "deploy/kubernetes/chart"
RELEASE = "agent-sandbox"
_CANNOT = 3
"""How scripts/chart.sh ends where it has neither Helm nor Go."""

Values = Mapping[str, Any]

EVERYTHING: Values = {
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"SANDBOX_LOG_LEVEL": "debug"},
    "boxes": {
        "pullSecret": "registry",
        "runtimeClass": "gvisor",
        "priorityClass": "low",
        "nodeSelector": {"pool": "boxes"},
        "tolerations": [{"key": "boxes", "operator": "Exists"}],
        "quota": {"pods": "100", "requests.memory": "64Gi"},
        "blockEviction": True,
    },
    "coordinators": {"nodeSelector": {"pool": "a"}, "tolerations": [{"operator": "Exists"}]},
    "workers": {
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"operator": "Exists"}],
        "autoscaling": {"enabled": True},
    },
    "podAnnotations": {"a": "b"},
    "priorityClass": {"create": True},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["redis"]}],
    "redis": {"persistence": {"storageClass": "fast"}},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"a": "b"},
        "previewHost": "previews.example.com",
        "tlsSecret": "tls",
        "previewTlsSecret": "wildcard",
    },
    "networkPolicies": {
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "callersFrom": [{"podSelector": {}}],
    },
}
"""Every part of the chart that clusters have without anything installed."""
LITTLE: Values = {
    "boxes": {"namespace": "elsewhere", "createNamespace": False},
    "redis": {"enabled": False},
    "networkPolicies": {"enabled": False},
}
SETS: Mapping[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "little": LITTLE,
    "stateful": {"workers": {"kind": "StatefulSet"}},
    "without a disk": {"redis": {"persistence": {"enabled": False}}},
}


def rendered(
    *values: Values,
    release: str = RELEASE,
    namespace: str = RELEASE,
    api_versions: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The objects of the chart. Skips where nothing can render it."""
    text = template(*values, release=release, namespace=namespace, api_versions=api_versions)
    return [each for each in yaml.safe_load_all(text) if each]


def template(
    *values: Values, release: str, namespace: str, api_versions: Sequence[str] = ()
) -> str:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.yaml") for number in range(len(values))]
        for file, each in zip(files, values, strict=True):
            file.write_text(json.dumps(each))
        env = {**os.environ}
        if api_versions:
            env["API_VERSIONS"] = " ".join(api_versions)
        done = subprocess.run(
            [ROOT / "scripts/chart.sh", "template", release, namespace, *files],
            env=env, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    if done.returncode == _CANNOT:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def defaults() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))
