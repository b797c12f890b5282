"""Files of the box: opening, describing, reading; making folders."""

import os
import stat
from functools import lru_cache
from typing import Any, Dict, Iterator, Optional, Tuple

from . import metadata
from .errors import Refused, shown
from .frames import CHUNK
from .paths import VOLUMES, find, found_at, is_inside, refusal_at

FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAMES = 1 << 20
"""Bytes of /etc/passwd and /etc/group that are read."""
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def open_path(path: str) -> Tuple[int, os.stat_result, str]:
    """A descriptor of the file or folder at path, its stat, and its real path.

    Raises Refused, also for a pipe, socket or device: reading one might block.
    """
    with found_at(path, follow=True) as found:
        if not _is_readable(os.lstat(found.name or ".", dir_fd=found.folder)):
            raise _not_readable(found.path)  # To open a device may already do something.
        device = os.fstat(found.folder).st_dev
        fd = os.open(found.name or ".", FILE, dir_fd=found.folder)
    info = os.fstat(fd)
    if info.st_dev != device and is_inside(found.path) and found.path not in VOLUMES:
        os.close(fd)
        raise Refused(
            "invalid_path", "%s is on another file system than its folder" % shown(found.path)
        )
    if not _is_readable(info):
        os.close(fd)
        raise _not_readable(found.path)
    return fd, info, found.path


def _is_readable(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)


def _not_readable(path: str) -> Refused:
    return Refused("not_a_file", "%s is neither a file nor a folder" % shown(path))


def describe(path: str, *, follow: bool = False) -> Dict[str, Any]:
    """The entry at path; a link is one itself, unless it is followed."""
    with found_at(path, follow=follow) as found:
        return entry_of(found.folder, found.name, found.path)


def make_folder(path: str) -> Dict[str, Any]:
    """Create a folder, with those on the way; tells whether it was not there before."""
    try:
        found = find(path, follow=True, create=True)
    except Refused as exc:
        if exc.code == "file_not_found":  # Nothing is missing: something is in the way.
            raise _in_the_way(path) from None
        raise
    try:
        if found.name:
            os.mkdir(found.name, 0o755, dir_fd=found.folder)
        info = os.lstat(found.name or ".", dir_fd=found.folder)
    except FileExistsError:
        raise _in_the_way(found.path) from None
    except OSError as exc:
        raise refusal_at(found.path, found.folder, exc) from None
    finally:
        os.close(found.folder)
    return {"created": bool(found.name), "entry": entry(found.path, info)}


def _in_the_way(path: str) -> Refused:
    message = "%s cannot be a folder: it, or a part of its path, is a file; choose another name"
    return Refused("invalid_path", message % shown(path))


def entry_of(folder: int, name: str, path: str) -> Dict[str, Any]:
    """The entry of a name in an open folder, or of the folder itself. Raises OSError."""
    info = os.lstat(name, dir_fd=folder) if name else os.fstat(folder)
    return entry_at(folder, name, path, info)


def entry_at(folder: int, name: str, path: str, info: os.stat_result) -> Dict[str, Any]:
    """The same, of which the status is known."""
    found = entry(path, info, target_of(folder, name, info))
    if stat.S_ISLNK(info.st_mode):
        found["leads_to"] = _leads_to(path)
    elif stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
        found["metadata"] = metadata.read(folder, name)
    return found


def _leads_to(path: str) -> Optional[Dict[str, Any]]:
    """What is at the end of a link; None if nothing is, or nothing that may be seen."""
    try:
        found = find(path, follow=True)
    except Refused:
        return None
    try:
        info = os.lstat(found.name or ".", dir_fd=found.folder)
    except OSError:
        return None
    finally:
        os.close(found.folder)
    return {"path": found.path, "type": type_of(info), "mode": _mode(info)}


def target_of(folder: int, name: str, info: os.stat_result) -> Optional[str]:
    """Where a link leads, as it says; None for anything else, and for what may not be read."""
    if not stat.S_ISLNK(info.st_mode):
        return None
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def entry(path: str, status: os.stat_result, target: Optional[str] = None) -> Dict[str, Any]:
    return {
        "name": os.path.basename(path),
        "path": path,
        "type": type_of(status),
        "size": status.st_size,
        "mode": _mode(status),
        "modified_at": status.st_mtime,
        "owner": _names("/etc/passwd").get(status.st_uid) or str(status.st_uid),
        "group": _names("/etc/group").get(status.st_gid) or str(status.st_gid),
        "target": target,
    }


def _mode(status: os.stat_result) -> str:
    return "%04o" % stat.S_IMODE(status.st_mode)


def type_of(status: os.stat_result) -> str:
    return _TYPES.get(stat.S_IFMT(status.st_mode), "other")


@lru_cache(maxsize=None)
def _names(path: str) -> Dict[int, str]:
    """Names by number, of users or groups. Read once: the user of the box cannot change them. Not
    with the pwd module, which may ask other services."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_MAX_NAMES).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    fields = [line.split(":") for line in reversed(lines)]  # Of several names the first counts.
    return {int(each[2]): each[0][:64] for each in fields if len(each) > 2 and each[2].isdecimal()}


def capacity(fd: int) -> int:
    """Size of the file system of a descriptor; a large number if unknown."""
    try:
        info = os.fstatvfs(fd)
    except OSError:
        return 1 << 62
    return info.f_blocks * info.f_frsize or 1 << 62


def read_at(fd: int, most: int, offset: int = 0) -> bytes:
    """What a file has from an offset on, but at most so many bytes; in one step where that is
    possible, as it may be written meanwhile. Raises OSError."""
    data = os.pread(fd, most, offset)
    while len(data) < most and (more := os.pread(fd, most - len(data), offset + len(data))):
        data += more
    return data


def chunks_of(data: bytes) -> Iterator[bytes]:
    return (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))


def file_chunks(fd: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file; fewer if it was truncated. Raises OSError."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(CHUNK, size - offset), offset)
        if not data:
            return
        offset += len(data)
        yield data
