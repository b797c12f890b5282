"""What /proc and /sys tell of the machine, and no program in a box needs.

Left are the facts that programs do read (cpuinfo, meminfo, stat, loadavg, uptime, version, mounts).
"""

from __future__ import annotations

PROC_FILES = (
    "cmdline", "config.gz", "devices", "diskstats", "interrupts", "iomem", "ioports", "kallsyms",
    "kcore", "key-users", "keys", "latency_stats", "locks", "mdstat", "modules", "partitions",
    "sched_debug", "slabinfo", "swaps", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
PROC_FOLDERS = ("acpi", "asound", "bus", "fs", "irq", "scsi")
SYS_FOLDERS = ("/sys/firmware", "/sys/devices/virtual/powercap")
"""As a Docker engine hides them by itself: a list of ours is instead of its own."""


def masked_paths() -> list[str]:
    """All of them, for an engine that skips what is not there."""
    return [*(f"/proc/{name}" for name in (*PROC_FILES, *PROC_FOLDERS)), *SYS_FOLDERS]
