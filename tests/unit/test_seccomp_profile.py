"""The profile of Docker boxes: what it lets through, and what it must never."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from sandbox_server.runtime.bubblewrap import seccomp_bpf

PROFILE: dict[str, Any] = json.loads(
    files("sandbox_server.runtime.docker").joinpath("seccomp.json").read_text(encoding="utf-8")
)
RULES: list[dict[str, Any]] = PROFILE["syscalls"]
ALLOWED = {name for rule in RULES if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}

# What the bubblewrap filter denies, and what only 32-bit machines or this profile know.
DENIED = {
    *seccomp_bpf.DENIED,
    *{"clone3", "socketcall", "umount", "stime", "clock_settime64", "clock_adjtime", "adjtimex"},
    *{"create_module", "query_module", "get_kernel_syms", "vm86", "vm86old", "uselib", "_sysctl"},
    *{"name_to_handle_at", "fanotify_mark", "mbind", "set_mempolicy", "move_pages", "kcmp"},
    *{"pidfd_getfd", "process_madvise", "memfd_secret", "nfsservctl", "listns"},
}

ESSENTIAL = {
    "shells": "clone dup3 execve exit_group kill pipe2 read rt_sigaction setpgid wait4 write",
    "old x86_64 forms": "access arch_prctl dup2 epoll_wait fork open pipe poll readlink stat vfork",
    "files": "chmod faccessat2 fchmodat2 flock fsync getdents64 mknodat openat renameat2 statx",
    "threads": "futex membarrier mmap mprotect rseq sched_getaffinity set_robust_list",
    "servers": "accept4 bind connect epoll_pwait eventfd2 listen recvmsg sendmsg setsockopt",
    "debuggers": "process_vm_readv ptrace",
    "runtimes": "getrandom madvise memfd_create pidfd_open prctl prlimit64 sigaltstack",
}


def rules_for(name: str) -> list[dict[str, Any]]:
    return [rule for rule in RULES if name in rule["names"]]


def test_what_is_not_named_is_refused() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {rule["action"] for rule in RULES} == {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"}


def test_machines() -> None:
    arches = {entry["architecture"]: entry["subArchitectures"] for entry in PROFILE["archMap"]}
    assert arches == {
        "SCMP_ARCH_X86_64": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "SCMP_ARCH_AARCH64": ["SCMP_ARCH_ARM"],
    }


def test_no_denied_call_is_allowed() -> None:
    slipped_in = ALLOWED & DENIED
    assert not slipped_in


@pytest.mark.parametrize("names", ESSENTIAL.values(), ids=ESSENTIAL)
def test_essentials_are_allowed(names: str) -> None:
    missing = set(names.split()) - ALLOWED
    assert not missing


def test_every_rule_says_why() -> None:
    assert all(rule["comment"] for rule in RULES)


def test_a_call_is_named_once_unless_its_rules_differ_by_argument() -> None:
    for name in ALLOWED:
        rules = rules_for(name)
        assert len(rules) == 1 or all(rule.get("args") for rule in rules), name


def test_clone_takes_no_namespace_flag() -> None:
    (rule,) = rules_for("clone")
    assert rule["args"] == [
        {
            "index": 0,
            "value": seccomp_bpf.NAMESPACE_FLAGS,
            "valueTwo": 0,
            "op": "SCMP_CMP_MASKED_EQ",
        }
    ]


@pytest.mark.parametrize("name", ["clone3", "socketcall"])
def test_calls_that_hide_their_arguments_are_not_there(name: str) -> None:
    (rule,) = rules_for(name)
    assert (rule["action"], rule["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert "args" not in rule


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("socket", seccomp_bpf.SOCKET_FAMILIES),
        ("socketpair", (1,)),
        ("personality", (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)),
    ],
)
def test_calls_allowed_for_some_values_only(name: str, values: tuple[int, ...]) -> None:
    assert [rule["args"] for rule in rules_for(name)] == [
        [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}] for value in values
    ]


def test_no_rule_asks_for_a_capability() -> None:
    assert not any("caps" in rule.get("includes", {}) for rule in RULES)
    assert not any("excludes" in rule for rule in RULES)
