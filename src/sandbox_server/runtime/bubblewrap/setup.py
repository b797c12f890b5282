"""How boxes are made on this machine, and the plan for one box that follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandbox_server.runtime.base import (
    VOLUME_OPTIONS,
    VOLUME_OWNER,
    BoxSpec,
    BoxVolume,
    Enforcement,
    Limits,
)
from sandbox_server.runtime.bubblewrap import mounts
from sandbox_server.runtime.bubblewrap.cgroups import Groups
from sandbox_server.runtime.bubblewrap.host import Program
from sandbox_server.runtime.bubblewrap.mounts import PERMS, PLACES, Layout, Python
from sandbox_server.runtime.bubblewrap.plan import Plan
from sandbox_server.runtime.loop_disk import MOUNT_FLAGS, MOUNT_OPTIONS
from sandbox_server.runtime.warden.zipapp import warden_arguments

Namespace = Literal["mount", "user", ""]

_NO_GROUP = "no writable control group"


@dataclass(frozen=True, kw_only=True)
class BoxGpus:
    """What a box with GPUs has besides: paths of this machine, at the same paths in the box."""

    devices: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        folders = sorted({path.rpartition("/")[0] for path in self.libraries})
        return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Facts about a machine, and how boxes are made on it."""

    bwrap: Program
    python: Python
    shared: str
    uid: int
    """The server's own uid."""
    uids: range | None = None
    """If we are root, the host uids for boxes: a box never runs as the host's root."""
    namespace: Namespace = ""
    """Where the writable folders are mounted: in a namespace of the launcher (`mount`, `user`), or
    by bubblewrap (empty), which limits bytes but not inodes."""
    no_namespace: str = ""
    stage: str = ""
    no_disk: str = ""
    """Why /workspace is kept in memory instead of on its own disk."""
    groups: Groups = field(default_factory=lambda: Groups(2, {}))
    nproc_per_namespace: bool = True
    """Whether RLIMIT_NPROC counts per user namespace instead of on the whole machine."""
    seccomp: bytes = b""
    no_seccomp: str = ""
    links: dict[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    etc: tuple[str, ...] = ()
    has_python_command: bool = False
    hidden_files: tuple[str, ...] = ()
    hidden_folders: tuple[str, ...] = ()

    @property
    def has_disk(self) -> bool:
        return self.namespace == "mount" and not self.no_disk

    @property
    def _stages_volumes(self) -> bool:
        """Whether the launcher mounts them, as root; otherwise bubblewrap binds them."""
        return self.namespace == "mount"

    @property
    def can_fork(self) -> bool:
        """Whether boxes can be forked: by root, and with a control group for processes."""
        return self.namespace == "mount" and "pids" in self.groups.parents

    def enforcement(self) -> Enforcement:
        limited = self.groups.parents
        data = f"per process only (RLIMIT_DATA), and files are kept in memory: {_NO_GROUP}"
        counted = f"/workspace is kept in memory and counts as memory: {self.no_disk}"
        loose = f"only the kernel's own limit for a tmpfs: {self.no_namespace}"
        pids = "pids" in limited or self.nproc_per_namespace
        enforced = {"cpu": "cpu" in limited, "pids": pids}
        return Enforcement(
            memory="" if "memory" in limited else data,
            cpu="" if "cpu" in limited else f"not limited: {_NO_GROUP}",
            pids="" if pids else f"not limited: {_NO_GROUP}, and Linux is older than 5.14",
            disk=counted if self.no_disk and "memory" in limited else "",
            inodes="" if self.namespace else loose,
            syscalls=self.no_seccomp,
            absent=frozenset(name for name, is_limited in enforced.items() if not is_limited),
        )

    def plan(
        self,
        spec: BoxSpec,
        *,
        box_id: str,
        uid: int | None,
        disk: str,
        gpus: BoxGpus | None = None,
    ) -> Plan:
        """The plan of a box without its folder and record. `uid`: its own host uid, if any; `disk`:
        the block device of its workspace."""
        gpus = gpus or BoxGpus()
        groups = self.groups.plan(box_id, spec.limits)
        layout = self.layout(spec, gpus)
        arguments = warden_arguments(spec, box_id)
        return {
            "folder": "",
            "claim": "",
            "record": "",
            "groups": groups.folders,
            "group_writes": groups.writes,
            "meters": groups.meters,
            "rlimits": self._rlimits(spec),
            "uid": uid,
            "namespace": self.namespace,
            "stage": self.stage,
            "binds": {**self._binds(), **self._layer_binds(spec, gpus)},
            "tmpfs": self._tmpfs(spec.limits, self.uid if uid is None else uid, disk),
            "disk": disk,
            "disk_owner": None if spec.disk is None else spec.disk.owner,
            "disk_options": ",".join(o for o in MOUNT_OPTIONS.split(",") if o not in MOUNT_FLAGS),
            "volumes": [*map(_staged_volume, spec.volumes)] if self._stages_volumes else [],
            "volume_options": VOLUME_OPTIONS,
            "bwrap": f"{self.stage}/{self.bwrap.inside}" if self._binds() else self.bwrap.path,
            "options": mounts.options(
                layout,
                {**spec.user.variables, **spec.network_variables(), **gpus.env, **spec.env},
            ),
            "command": mounts.command(layout, arguments, pids=self._nproc(spec)),
            "arguments": arguments,
            "warden_folder": mounts.WARDEN,
            "seccomp": self.seccomp,
        }

    def layout(self, spec: BoxSpec, gpus: BoxGpus) -> Layout:
        limits, staged = spec.limits, self._layer_binds(spec, gpus)
        sources = {**spec.layers, **gpus.libraries}
        return Layout(
            shared=self._staged("shared", self.shared),
            places={
                name: f"{self.stage}/{name}" if self.namespace else size
                for name, size in _sizes(limits).items()
            },
            home=spec.user.home,
            python=self.python,
            python_source=self._staged("python", self.python.prefix),
            links=self.links,
            folders=self.folders,
            etc=self.etc,
            has_python_command=self.has_python_command,
            hidden_files=self.hidden_files,
            hidden_folders=self.hidden_folders,
            layers={
                path: f"{self.stage}/{name}" if staged else source
                for name, (path, source) in zip(_numbered(sources), sources.items(), strict=True)
            },
            devices=gpus.devices,
            bound={
                each.path: (each.source, each.read_only)
                for each in spec.volumes
                if not self._stages_volumes
            },
        )

    def _layer_binds(self, spec: BoxSpec, gpus: BoxGpus) -> dict[str, str]:
        if self.namespace != "mount":
            return {}
        sources = {**spec.layers, **gpus.libraries}
        return dict(zip(_numbered(sources), sources.values(), strict=True))

    def _staged(self, name: str, source: str) -> str:
        """The path for bubblewrap, which as another uid may not be able to open the source."""
        return f"{self.stage}/{name}" if name in self._binds() else source

    def _binds(self) -> dict[str, str]:
        if self.namespace != "mount":
            return {}
        binds = {"shared": self.shared, "python": self.python.prefix, **self.bwrap.parts}
        return {name: source for name, source in binds.items() if source}

    def _tmpfs(self, limits: Limits, uid: int, disk: str) -> dict[str, str]:
        if not self.namespace:
            return {}
        return {
            name: f"size={size},nr_inodes={limits.inodes},mode={PERMS[name]},uid={uid},gid={uid}"
            for name, size in _sizes(limits).items()
            if name != "workspace" or not disk
        }

    def _rlimits(self, spec: BoxSpec) -> dict[str, int]:
        rlimits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": spec.limits.warden_files,
            "RLIMIT_FSIZE": spec.file_bytes,
        }
        if "memory" not in self.groups.parents:
            rlimits["RLIMIT_DATA"] = spec.limits.memory_bytes
        return rlimits

    def _nproc(self, spec: BoxSpec) -> int | None:
        if "pids" in self.groups.parents or not self.nproc_per_namespace:
            return None
        return spec.limits.pids


def _staged_volume(volume: BoxVolume) -> tuple[str, str, str, bool, int, int]:
    uid, gid = volume.owner or (VOLUME_OWNER, VOLUME_OWNER)
    kind = "ext4" if volume.device else ""
    return kind, volume.device or volume.source, volume.name, volume.read_only, uid, gid


def _numbered(sources: Mapping[str, str]) -> list[str]:
    return [f"layer{number}" for number in range(len(sources))]


def _sizes(limits: Limits) -> dict[str, int]:
    sizes = {
        "workspace": limits.disk_bytes,
        "home": limits.home_bytes,
        "tmp": limits.tmp_bytes,
        "shm": limits.shm_bytes,
    }
    assert sizes.keys() == PLACES.keys()
    return sizes
