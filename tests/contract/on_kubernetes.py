"""The cluster of the tests, and which tests of the contract are not run on its pods, and why. All
others are by `make test-cluster`, and the first of them wherever there is a cluster
(scripts/cluster.sh)."""

import os

import pytest

from sandbox_server.runtime.base import Runtime

KUBECONFIG = os.environ.get("SANDBOX_TEST_CLUSTER", "")
PODS = os.environ.get("SANDBOX_TEST_PODS", "kubernetes").split(",") if KUBECONFIG else []
"""The runtimes that there are besides those of the machine; `kubernetes_gvisor` are pods of the
cluster's RuntimeClass gvisor."""
WHOLE = "SANDBOX_TEST_PODS" in os.environ
"""Whether everything is run on pods: a quarter of an hour more than what they differ in."""
_FIRST = {
    f"tests.contract.{name}"
    for name in (
        "test_checkpoints", "test_commands", "test_files", "test_kills", "test_recovery",
        "test_sandboxes", "test_state",
    )
}  # fmt: skip

_DISK = "the kubelet watches the size of /workspace: nothing is refused at the limit"
_PIDS = "pods have no limit of processes, and a session that asks for one is refused"
WHY = {
    "test_volumes": "volumes are on disks of the server's machine",
    "test_agents::test_a_session_that_begins_by_itself_is_as_the_lost_one_was": _PIDS,
    "test_file_bounds::test_a_tar_of_many_sparse_files_has_an_end": _DISK,
    "test_file_entries::test_a_move_that_fails_leaves_the_source_and_no_rest": _DISK,
    "test_files::test_a_full_disk_is_told": _DISK,
    "test_poison::test_a_workspace_that_is_closed": "/workspace is root's there: nobody closes it",
    "test_sandboxes::test_a_session_has_the_limits_it_asks_for": _PIDS,
    "test_sandboxes::test_limits_of_a_session_hold_in_its_box": _PIDS,
    "test_sandboxes::test_more_than_the_maximum_is_refused_and_the_maximum_named": _PIDS,
}
"""By module, or module and test."""
_NOT_ON_GVISOR = {"test_file_operations::test_metadata_of_a_file": "its files have no attributes"}


def cluster_runtime(runtime_class: str | None = None) -> Runtime:
    from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime
    from sandbox_server.runtime.registry import ClusterOptions

    return KubernetesRuntime(Access.find(KUBECONFIG), ClusterOptions(runtime_class=runtime_class))


def pods_for(metafunc: pytest.Metafunc) -> list[str]:
    """The runtimes of PODS that a test is run on."""
    name = metafunc.module.__name__
    module = name.rpartition(".")[2]
    test = f"{module}::{metafunc.function.__name__}"
    if module in WHY or test in WHY or _chooses(metafunc) or not (WHOLE or name in _FIRST):
        return []
    return [pods for pods in PODS if not (pods.endswith("gvisor") and test in _NOT_ON_GVISOR)]


def _chooses(metafunc: pytest.Metafunc) -> bool:
    """Whether the test says itself on which runtimes it is run."""
    marks = metafunc.definition.iter_markers("parametrize")
    return any("runtime_name" in mark.args[0] for mark in marks)
