"""The launcher's input: how to prepare one box, as plain data."""

from __future__ import annotations

from typing import TypedDict


class BarePlan(TypedDict):
    """What a box leaves on the host, for its keeper: known before anything else of it."""

    folder: str
    claim: str
    """The link that marks its uid as used."""
    record: str
    """box.json as text, without the pids, which the launcher adds."""
    groups: list[str]


class Plan(BarePlan):
    """Only types that `marshal` can write. Empty values are skipped."""

    group_writes: list[tuple[str, str, bool]]
    """(path, value, required): if a required write fails, the box does not start."""
    meters: dict[str, str]
    rlimits: dict[str, int]
    uid: int | None
    """If run by root: the uid, and gid, to switch to."""

    namespace: str
    """`mount` (as root), `user` (with a user namespace), or empty: no stage."""
    stage: str
    """An existing folder to mount on, in the launcher's mount namespace only."""
    binds: dict[str, str]
    tmpfs: dict[str, str]
    disk: str
    disk_options: str
    disk_owner: int | None
    """The uid that its files have, if not the box's own."""
    volumes: list[tuple[str, str, str, bool, int, int]]
    """(kind of file system, or empty for a folder; its device, or the folder; the name in the
    workspace; read-only; uid and gid to show as the box's)."""
    volume_options: str

    bwrap: str
    options: list[str]
    command: list[str]
    arguments: list[str]
    """Of the warden, `name=value`, and in `command` too."""
    warden_folder: str
    """Inside of the box."""
    seccomp: bytes
