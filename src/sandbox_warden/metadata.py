"""Metadata of files: what their owners write on them, kept as extended attributes."""

import errno
import os
from typing import Any, Dict, Optional, Union

from .errors import Refused, shown

PREFIX = "user.e2b."
"""As in sandboxes of e2b, so that programs in a box find it under the same names."""
MAX_BYTES = 4096
"""Of names and values of one file; ext4 has no room for more."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE)


def checked(metadata: Any) -> Dict[str, str]:
    """Raises Refused."""
    if not isinstance(metadata, dict):
        raise Refused("invalid_request", "metadata must be an object")
    size = 0
    for name, value in metadata.items():
        if not isinstance(value, str) or not name or "\0" in name:
            raise Refused("invalid_request", "metadata must have names, and values that are text")
        size += len(PREFIX) + len(name.encode()) + len(value.encode())
    if size > MAX_BYTES:
        raise Refused("invalid_request", "metadata of a file has at most %d bytes" % MAX_BYTES)
    return metadata


def write(fd: int, metadata: Dict[str, str], path: str) -> None:
    """On a file that has none. Raises Refused, OSError."""
    try:
        for name, value in metadata.items():
            os.setxattr(fd, PREFIX + name, value.encode())
    except OSError as exc:
        if exc.errno in (errno.ENOTSUP, errno.EPERM):
            message = (
                "%s cannot have metadata: its file system has no extended attributes;"
                " leave metadata out, or store it elsewhere"
            )
        elif exc.errno in _NO_ROOM:
            message = "the metadata of %s is more than its file system can hold; use less"
        else:
            raise
        raise Refused("invalid_path", message % shown(path)) from None


def read(folder: int, name: str) -> Optional[Dict[str, str]]:
    """Of a name in an open folder, or of the folder itself. None if there is none, or it may not be
    read. What is no text is left out, and what is more than a file can be given."""
    place: Union[int, str] = folder
    if name:
        place = "/proc/self/fd/%d/%s" % (folder, name)
    follow = not name
    try:
        names = [each for each in os.listxattr(place, follow_symlinks=follow)
                 if each.startswith(PREFIX)]  # fmt: skip
        if not names:
            return None
        values = {each: os.getxattr(place, each, follow_symlinks=follow) for each in names}
    except OSError:
        return None
    return _text(values)


def copy(source: int, target: int) -> None:
    """From one open file or folder to another, as far as that can have any. Raises OSError."""
    try:
        for name in os.listxattr(source):
            if name.startswith(PREFIX):
                os.setxattr(target, name, os.getxattr(source, name))
    except OSError as exc:
        if exc.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENODATA, errno.EACCES):
            raise


def _text(values: Dict[str, bytes]) -> Optional[Dict[str, str]]:
    found: Dict[str, str] = {}
    room = MAX_BYTES
    for name, value in sorted(values.items()):
        room -= len(os.fsencode(name)) + len(value)
        if room < 0:
            break
        try:
            name.encode()
            found[name[len(PREFIX) :]] = value.decode()
        except UnicodeError:
            continue
    return found or None
