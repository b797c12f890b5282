"""What the launcher is told: the whole preparation of one box as plain data."""

from __future__ import annotations

from typing import TypedDict


class Plan(TypedDict):
    """Only what `marshal` can write. Empty means: not wanted."""

    folder: str
    record: str
    """box.json but for the processes, which the launcher knows: a JSON object as text."""

    groups: list[str]
    group_writes: list[tuple[str, str, bool]]
    """Path, value, and whether the box may not start without it."""
    meters: dict[str, str]
    rlimits: dict[str, int]
    uid: int | None
    """Who to become, as root; the gid is the same."""

    namespace: str
    """`mount` (as root), `user` (a user namespace first), or empty: nothing is staged."""
    stage: str
    """An existing folder, covered in the launcher's mount namespace only."""
    binds: dict[str, str]
    tmpfs: dict[str, str]
    disk: str
    disk_options: str

    bwrap: str
    options: list[str]
    command: list[str]
    seccomp: bytes
