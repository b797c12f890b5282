"""Paths of /proc and /sys that are hidden in boxes: they describe the host.

What programs do read stays visible: cpuinfo, meminfo, stat, loadavg, uptime, version, mounts.
"""

from __future__ import annotations

PROC_FILES = (
    "cmdline", "config.gz", "devices", "diskstats", "interrupts", "iomem", "ioports", "kallsyms",
    "kcore", "key-users", "keys", "latency_stats", "locks", "mdstat", "modules", "partitions",
    "sched_debug", "slabinfo", "swaps", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
PROC_FOLDERS = ("acpi", "asound", "bus", "fs", "irq", "scsi")
SYS_FOLDERS = ("/sys/firmware", "/sys/devices/virtual/powercap")
"""Docker masks these by default, but our MaskedPaths replace its list."""


def masked_paths() -> list[str]:
    """All of them. A Docker engine skips those that do not exist."""
    return [*(f"/proc/{name}" for name in (*PROC_FILES, *PROC_FOLDERS)), *SYS_FOLDERS]
