"""Boxes as pods of a Kubernetes cluster."""

from sandbox_server.runtime.kubernetes.access import Access
from sandbox_server.runtime.kubernetes.box import PodBox
from sandbox_server.runtime.kubernetes.runtime import KubernetesRuntime
from sandbox_server.runtime.registry import RuntimeOptions

__all__ = ["Access", "KubernetesRuntime", "PodBox", "make"]


def make(options: RuntimeOptions) -> KubernetesRuntime:
    """Entry point in the group agent_sandbox.runtimes."""
    cluster = options.kubernetes
    access = Access.find(cluster.kubeconfig, namespace=cluster.namespace)
    return KubernetesRuntime(access, cluster, metrics=options.metrics)
