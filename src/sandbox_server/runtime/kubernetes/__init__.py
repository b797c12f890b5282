"""Boxes as pods of a Kubernetes cluster."""

from sandbox_server.runtime.kubernetes.access import Access
from sandbox_server.runtime.kubernetes.box import PodBox
from sandbox_server.runtime.kubernetes.options import PodOptions
from sandbox_server.runtime.kubernetes.runtime import KubernetesRuntime
from sandbox_server.runtime.registry import RuntimeOptions

__all__ = ["Access", "KubernetesRuntime", "PodBox", "PodOptions", "make"]


def make(options: RuntimeOptions) -> KubernetesRuntime:
    """Entry point in the group agent_sandbox.runtimes."""
    cluster = options.kubernetes
    access = Access.find(cluster.kubeconfig, namespace=cluster.namespace)
    pods = PodOptions(
        runtime_class=cluster.runtime_class,
        node_selector=cluster.node_selector,
        tolerations=cluster.tolerations,
        priority_class=cluster.priority_class,
        pull_secret=cluster.pull_secret,
        requests=cluster.requests,
        placement_s=cluster.placement_s,
        shared=cluster.shared,
        eviction_s=cluster.eviction_s,
        stream=cluster.stream,
        warm_pool=cluster.warm_pool,
        warm_limits=cluster.warm_limits,
    )
    return KubernetesRuntime(access, pods, metrics=options.metrics)
