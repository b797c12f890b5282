"""What hostile cases cannot show on some runtime, and what does not hold yet."""

from typing import NamedTuple


class NotApplicable(NamedTuple):
    """Why a test is not for a runtime, and which test says what happens there instead."""

    enforcement: str
    """The field of Enforcement in which the runtime says so too."""
    reason: str
    instead: str = ""
    lost: bool = False
    """Whether the box is gone after the other test."""


_DOCKER = {
    ("gvisor", "test_a_fork_bomb_is_bounded_and_gone_at_its_timeout"): NotApplicable(
        "pids",
        "gVisor does not count processes: a bomb starves its own box until that is destroyed",
        instead="test_a_fork_bomb_without_a_limit_hurts_its_own_box_alone",
        lost=True,
    ),
    ("gvisor", "test_a_fork_bomb_in_the_background_leaves_the_session_alone"): NotApplicable(
        "pids",
        "as above",
        instead="test_a_fork_bomb_without_a_limit_hurts_its_own_box_alone",
        lost=True,
    ),
    ("gvisor", "test_threads_count_as_processes"): NotApplicable("pids", "as above"),
    ("gvisor", "test_a_memory_hog_is_killed_and_told"): NotApplicable(
        "memory",
        "to the host all of gVisor is one process: the box is over its limit as a whole",
        instead="test_a_memory_hog_takes_its_gvisor_box_along",
        lost=True,
    ),
    ("gvisor", "test_memory_that_outlives_its_process_leaves_the_session_alone"): NotApplicable(
        "memory",
        "as above",
        instead="test_a_memory_hog_takes_its_gvisor_box_along",
        lost=True,
    ),
    ("gvisor", "test_terminals_of_a_neighbour_are_its_own"): NotApplicable(
        "memory", "terminals are of gVisor's own kernel; so many of them are a memory hog"
    ),
    ("gvisor", "test_empty_files_in_memory_are_counted"): NotApplicable(
        "inodes", "its tmpfs has no limit of inodes; they count as memory of the box"
    ),
    ("gvisor", "test_no_signal_reaches_the_warden"): NotApplicable(
        "syscalls",
        "its kernel does not shield PID 1 from SIGKILL: a box can end itself, and nothing else",
        instead="test_killing_the_warden_ends_its_gvisor_box_alone",
        lost=True,
    ),
    ("gvisor", "test_calls_that_reach_into_the_kernel_are_denied"): NotApplicable(
        "syscalls",
        "some are answered by gVisor's own kernel, and do not reach the host's",
        instead="test_gvisor_answers_a_few_calls_in_its_own_kernel",
    ),
    ("gvisor", "test_devices_cannot_be_made"): NotApplicable(
        "syscalls",
        "its tmpfs has device files, which lead to devices of its own kernel",
        instead="test_devices_made_on_gvisor_lead_nowhere",
    ),
    ("gvisor", "test_descriptors_of_the_warden_are_out_of_reach"): NotApplicable(
        "syscalls",
        "its /proc/1/fd ignores that the warden is not dumpable: a box can disturb its own warden",
        instead="test_memory_of_the_gvisor_warden_is_out_of_reach",
    ),
}


_PIDS = "pods have no limit of processes: a bomb ends at the memory of its own box"
_DISK = "the kubelet watches sizes, and before 1.22 those of files in memory too: no disk is full"
_NETWORK = "the cluster of the tests does not enforce NetworkPolicies"
_PROFILE = "the container runtime's default profile lets more through than ours"
_PODS = {
    "test_a_fork_bomb_is_bounded_and_gone_at_its_timeout": NotApplicable(
        "pids", _PIDS, instead="test_a_fork_bomb_without_a_limit_hurts_its_own_box_alone", lost=True
    ),
    "test_a_fork_bomb_in_the_background_leaves_the_session_alone": NotApplicable(
        "pids", _PIDS, instead="test_a_fork_bomb_without_a_limit_hurts_its_own_box_alone", lost=True
    ),
    "test_threads_count_as_processes": NotApplicable("pids", _PIDS),
    "test_memory_that_outlives_its_process_leaves_the_session_alone": NotApplicable("disk", _DISK),
    "test_a_large_file_ends_at_the_disk_limit": NotApplicable(
        "disk", _DISK, instead="test_no_file_is_larger_than_the_disk_limit"
    ),
    "test_files_in_memory_are_bounded_and_charged_to_the_box": NotApplicable("disk", _DISK),
    "test_a_box_that_is_full_can_still_be_emptied": NotApplicable("disk", _DISK),
    "test_empty_files_are_counted": NotApplicable("inodes", "emptyDirs have no limit of files"),
    "test_empty_files_in_memory_are_counted": NotApplicable(
        "inodes", "emptyDirs have no limit of files: they are memory of the box"
    ),
    "test_there_is_only_the_loopback": NotApplicable("network", "a pod has an interface"),
    "test_metadata_gateways_and_the_internet_are_unreachable": NotApplicable("network", _NETWORK),
    "test_ports_of_the_host_are_unreachable": NotApplicable("network", _NETWORK),
    "test_calls_that_reach_into_the_kernel_are_denied": NotApplicable(
        "syscalls", _PROFILE, instead="test_a_default_profile_lets_little_more_through"
    ),
    "test_sockets_of_odd_kinds_cannot_be_opened": NotApplicable(
        "syscalls", _PROFILE, instead="test_a_default_profile_lets_little_more_through"
    ),
    "test_the_machine_is_not_described": NotApplicable(
        "syscalls", "which files of /proc are hidden is up to the container runtime"
    ),
}
NOT_APPLICABLE = {
    **_DOCKER,
    **{("kubernetes", test): why for test, why in _PODS.items()},
    **{
        ("kubernetes_gvisor", test): why
        for test, why in _PODS.items()
        if why.reason != _PROFILE  # Calls end in gVisor's kernel.
    },
    **{("kubernetes_gvisor", test): why for (_, test), why in _DOCKER.items()},
    ("kubernetes_gvisor", "test_nothing_that_a_box_writes_ends_up_in_a_log"): NotApplicable(
        "syscalls",
        "its /proc/1/fd leads to the log of its own pod, of which a kubelet keeps 50 MiB",
    ),
    ("kubernetes_gvisor", "test_tools_for_more_power_fail"): NotApplicable(
        "syscalls",
        "newer releases of gVisor let a user namespace mount, in their own kernel",
        instead="test_gvisor_answers_a_few_calls_in_its_own_kernel",
    ),
}
"""By runtime and test."""


class Fault(NamedTuple):
    """Something that should hold and does not, yet."""

    reason: str


_TERMINALS = Fault(
    "all boxes share the machine's 3,072 terminals (kernel.pty.max less kernel.pty.reserve)"
)
OPEN = {
    ("docker", "test_terminals_of_a_neighbour_are_its_own"): _TERMINALS,
    ("bubblewrap", "test_terminals_of_a_neighbour_are_its_own"): _TERMINALS,
    ("kubernetes", "test_terminals_of_a_neighbour_are_its_own"): _TERMINALS,
    ("docker", "test_inotify_of_a_neighbour_is_its_own"): Fault(
        "all docker boxes are one user of the host and share its fs.inotify.max_user_instances"
    ),
    ("kubernetes", "test_inotify_of_a_neighbour_is_its_own"): Fault(
        "all pods of a node are one user of it and share its fs.inotify.max_user_instances"
    ),
}
"""Known faults, by runtime and test."""
