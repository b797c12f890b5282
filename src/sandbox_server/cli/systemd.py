"""The systemd units: those that `sandbox init` writes, and the same in deploy/systemd."""

from __future__ import annotations

from pathlib import Path

_ABOUT = {
    "standalone": """\
# It runs as root, because only root may attach the loop devices that give boxes a disk of fixed
# size, and make the control groups of bubblewrap boxes. A box never runs as root.""",
    "worker": """\
# {settings} (mode 0600) has at least:
#   SANDBOX_REDIS_URL=rediss://:password@redis.example.com:6379/0
#   SANDBOX_FLEET_KEY=…                        the same on all machines of the fleet
#   SANDBOX_HOST=10.0.0.21                     coordinators reach it, callers do not
#   SANDBOX_ADVERTISE=http://10.0.0.21:5000
#   SANDBOX_WORKER_ID=worker-21                its boxes and sessions belong to this name
#
# It runs as root, because only root may attach the loop devices that give boxes a disk of fixed
# size. `User=agent-sandbox` with `SupplementaryGroups=docker` works too; /health then says that
# disks have no limit. The docker group is as powerful as root, so little is won by it.""",
    "coordinator": """\
# {settings} (mode 0600) has at least:
#   SANDBOX_REDIS_URL=rediss://:password@redis.example.com:6379/0
#   SANDBOX_FLEET_KEY=…                        the same on all machines of the fleet
#   SANDBOX_API_KEYS=tenant:key,…              what callers show
#   SANDBOX_HOST=10.0.0.11                     the load balancer reaches it
#
# It keeps nothing and needs no rights at all.""",
}
_ENGINE = " docker.service"
_VARIABLES = {
    "standalone": "SANDBOX_LOG_FORMAT=json",
    "worker": "SANDBOX_ROLE=worker SANDBOX_RUNTIME=docker SANDBOX_LOG_FORMAT=json",
    "coordinator": "SANDBOX_ROLE=coordinator SANDBOX_LOG_FORMAT=json",
}
_BOXES = """\
# SIGTERM lets running commands end first, for up to SANDBOX_DRAIN_TIMEOUT (20 s). Boxes live on,
# and the next process takes them over.
TimeoutStopSec=90
StateDirectory=sandbox
StateDirectoryMode=0700
LimitNOFILE=65536
TasksMax=infinity
"""
_LIFE = {
    "standalone": "Restart=on-failure\nRestartSec=1\n"
    + _BOXES
    + "# Bubblewrap boxes are processes of this unit: they get control groups of their own, and\n"
    "# only the server is stopped.\nDelegate=yes\nKillMode=process\n",
    "worker": "# A worker that was drained has ended well, and stays away until it is started.\n"
    "Restart=on-failure\nRestartSec=1\n" + _BOXES,
    "coordinator": "Restart=always\nRestartSec=1\nTimeoutStopSec=90\nLimitNOFILE=65536\n",
}
_HARDENING = {
    "standalone": """\
# Left out on purpose: PrivateDevices, DevicePolicy and ProtectClock would keep loop devices away,
# ProtectSystem=strict the files behind them, which are in /var/tmp; ProtectHostname and
# ProtectKernelLogs would keep bubblewrap from making boxes.
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome={home}
""",
    "worker": """\
# Left out on purpose: PrivateDevices, DevicePolicy and ProtectClock would keep loop devices away,
# and ProtectSystem=strict the files behind them, which are in /var/tmp.
NoNewPrivileges=yes
ProtectSystem=full
ProtectHome={home}
ProtectKernelLogs=yes
ProtectHostname=yes
""",
    "coordinator": """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
PrivateDevices=yes
PrivateTmp=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome={home}
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RestrictNamespaces=yes
MemoryDenyWriteExecute=yes
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
""",
}
_HOMES = ("/home", "/root", "/run/user")


def unit_name(role: str) -> str:
    return "agent-sandbox.service" if role == "standalone" else f"agent-sandbox-{role}.service"


def unit(role: str, *, program: Path, settings: Path) -> str:
    """The unit of a server. program: `sandbox`; settings: its settings file. Both absolute."""
    makes_boxes = role != "coordinator"
    engine = _ENGINE if makes_boxes else ""
    netlink = " AF_NETLINK" if makes_boxes else ""
    user = "" if makes_boxes else "DynamicUser=yes\n"
    in_home = any(program.is_relative_to(home) for home in _HOMES)
    name = "agent-sandbox" if role == "standalone" else f"agent-sandbox {role}"
    return f"""\
# /etc/systemd/system/{unit_name(role)}
#
{_ABOUT[role].format(settings=settings)}
[Unit]
Description={name}
After=network-online.target{engine}
Wants=network-online.target{engine}

[Service]
Type=exec
{user}Environment={_VARIABLES[role]}
EnvironmentFile={_escaped(settings)}
ExecStart="{_escaped(program)}" serve
{_LIFE[role]}
{_HARDENING[role].format(home="read-only" if in_home else "yes")}\
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6{netlink}
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
