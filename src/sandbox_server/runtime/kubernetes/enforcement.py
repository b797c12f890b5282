"""Which limits a cluster enforces on pods, as far as a namespace can tell."""

from __future__ import annotations

from sandbox_server.runtime.base import Enforcement

_WATCHED = (
    "the kubelet measures emptyDirs and evicts a pod that is over its limit (session_lost instead"
    " of a full disk)"
)
_GVISOR_MEMORY = (
    "a box over its memory limit ends as a whole (session_lost instead of reason oom): gVisor is"
    " one process to the node"
)


def enforcement(*, gvisor: bool, no_policy: str) -> Enforcement:
    """no_policy: why there is no NetworkPolicy."""
    return Enforcement(
        memory=_GVISOR_MEMORY if gvisor else "",
        pids="pods have no limit of their own: set podPidsLimit of the kubelets",
        disk=_WATCHED,
        inodes="emptyDirs have no limit of files",
        syscalls="filtered by the container runtime's default profile (RuntimeDefault), not by ours"
        if not gvisor
        else "filtered by gVisor's own kernel, not by our seccomp profile",
        network="boxes without a network are pods under the NetworkPolicy sandbox-deny-all, which"
        " holds only where the cluster's network plugin enforces such policies"
        + (f"; and it is missing: {no_policy}" if no_policy else ""),
        absent=frozenset({"pids"}),
    )
