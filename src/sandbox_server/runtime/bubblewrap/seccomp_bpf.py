"""The system-call filter of bubblewrap boxes: a BPF program for `bwrap --seccomp FD`.

bubblewrap takes a compiled filter and brings no profile of its own, so this module assembles
one. A box runs whatever programs the host has, so this is a denylist: the calls that reach deep
into the kernel and that nothing in an unprivileged box needs. A call newer than LAST_REVIEWED
answers ENOSYS, as on an older kernel. Docker boxes have a stricter allowlist, `seccomp.json`.

ptrace is not denied: gdb and strace are useful, and reach only processes of the same box.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

# Call -> its number on (x86_64, aarch64); None where the machine has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # Kernel interfaces with a long record of privilege escalations.
    "add_key": (248, 217),
    "bpf": (321, 280),
    "fanotify_init": (300, 262),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "perf_event_open": (298, 241),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    # Namespaces and mounts. A new user namespace would hand out every capability again.
    "chroot": (161, 51),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "umount2": (166, 39),
    "unshare": (272, 97),
    # The machine itself. Capabilities guard these as well; this is defence in depth.
    "acct": (163, 89),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "vhangup": (153, 58),
}
# file_setattr, of Linux 6.17. Numbers above 423 are the same on every machine.
LAST_REVIEWED = 469

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
NAMESPACE_FLAGS = 0x7E020000
# AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. Any other may load a kernel module of its own.
SOCKET_FAMILIES = (1, 2, 10, 16)
# TIOCSTI types into a terminal that is shared with the host; TIOCLINUX pastes into a console.
TERMINAL_INJECTIONS = (0x5412, 0x541C)

EPERM, ENOSYS = 1, 38
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_VERDICTS = {"allow": ALLOW, "eperm": ERRNO | EPERM, "enosys": ERRNO | ENOSYS, "kill": KILL_PROCESS}


class _Machine(NamedTuple):
    column: int  # in DENIED
    audit_arch: int
    ioctl: int
    clone: int
    clone3: int
    sockets: tuple[int, int]  # socket, socketpair
    x32: bool = False


_MACHINES = {
    "x86_64": _Machine(0, 0xC000003E, ioctl=16, clone=56, clone3=435, sockets=(41, 53), x32=True),
    "aarch64": _Machine(1, 0xC00000B7, ioctl=29, clone=220, clone3=435, sockets=(198, 199)),
}

_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data
_X32_BIT = 0x40000000
# What a tracer (strace, proot) writes over a call that it wants skipped.
_SKIPPED = 0xFFFFFFFF

_LOAD, _RETURN = 0x20, 0x06  # BPF_LD|W|ABS, BPF_RET|K
_EQUAL, _GREATER, _AT_LEAST, _ANY_BIT = 0x15, 0x25, 0x35, 0x45  # BPF_JMP|K with JEQ JGT JGE JSET


@dataclass
class _Assembler:
    """Collects instructions; jumps name labels, which may come later but never earlier."""

    code: list[tuple[int, int, str, str]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def label(self, name: str) -> None:
        self.labels[name] = len(self.code)

    def load(self, offset: int) -> None:
        self.code.append((_LOAD, offset, "", ""))

    def load_arg(self, index: int) -> None:
        """Load an argument's low half: of those tested here, the kernel reads no more."""
        self.load(_ARGS + 8 * index)

    def jump(self, test: int, value: int, *, then: str = "", otherwise: str = "") -> None:
        """Compare what was loaded; an empty target means the next instruction."""
        self.code.append((test, value, then, otherwise))

    def answer(self, value: int) -> None:
        self.code.append((_RETURN, value, "", ""))

    def assemble(self) -> bytes:
        """An array of struct sock_filter. Raises ValueError for a jump of over 255 steps."""
        return b"".join(
            struct.pack("<HBBI", code, self._steps(at, then), self._steps(at, otherwise), value)
            for at, (code, value, then, otherwise) in enumerate(self.code)
        )

    def _steps(self, at: int, target: str) -> int:
        steps = self.labels[target] - at - 1 if target else 0
        if not 0 <= steps <= 255:
            raise ValueError(f"jump to {target!r} of {steps} steps does not fit a BPF instruction")
        return steps


def program(machine: str | None = None) -> bytes:
    """The filter for `machine`, by default this one, in the format of `bwrap --seccomp`.

    Raises ValueError for an unknown machine.
    """
    name = platform.machine() if machine is None else machine
    if name not in _MACHINES:
        known = " and ".join(_MACHINES)
        raise ValueError(f"no system-call filter for machine {name!r}, only for {known}")
    asm = _Assembler()
    _by_number(asm, _MACHINES[name])
    _by_argument(asm)
    for label, verdict in _VERDICTS.items():
        asm.label(label)
        asm.answer(verdict)
    return asm.assemble()


def _by_number(asm: _Assembler, on: _Machine) -> None:
    asm.load(_ARCH)
    asm.jump(_EQUAL, on.audit_arch, otherwise="kill")
    asm.load(_NR)
    asm.jump(_EQUAL, _SKIPPED, then="enosys")
    if on.x32:
        asm.jump(_AT_LEAST, _X32_BIT, then="kill")
    asm.jump(_GREATER, LAST_REVIEWED, then="enosys")
    # clone3 hides its flags behind a pointer; after ENOSYS the C library falls back to clone.
    asm.jump(_EQUAL, on.clone3, then="enosys")
    asm.jump(_EQUAL, on.clone, then="clone")
    asm.jump(_EQUAL, on.ioctl, then="ioctl")
    for socket in on.sockets:
        asm.jump(_EQUAL, socket, then="socket")
    for numbers in DENIED.values():
        denied = numbers[on.column]
        if denied is not None:
            asm.jump(_EQUAL, denied, then="eperm")
    asm.answer(ALLOW)


def _by_argument(asm: _Assembler) -> None:
    asm.label("clone")
    asm.load_arg(0)
    asm.jump(_ANY_BIT, NAMESPACE_FLAGS, then="eperm", otherwise="allow")
    asm.label("ioctl")
    asm.load_arg(1)
    for request in TERMINAL_INJECTIONS:
        asm.jump(_EQUAL, request, then="eperm")
    asm.answer(ALLOW)
    asm.label("socket")
    asm.load_arg(0)
    for family in SOCKET_FAMILIES:
        asm.jump(_EQUAL, family, then="allow")
    asm.answer(ERRNO | EPERM)
