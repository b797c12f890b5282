"""Files of the box, as its user sees them."""

import errno
import os
import stat
from typing import Any, Dict, Iterator, Tuple

from .errors import Refused, refusal
from .frames import CHUNK
from .paths import Found, find

FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def open_path(path: str) -> Tuple[int, os.stat_result, str]:
    """A descriptor of the file or folder at path, what it is, and its real path.

    Raises Refused for a path outside the writable places and for what cannot be read as a file:
    a pipe, a socket or a device is never waited for.
    """
    found = find(path, follow=True)
    try:
        fd = os.open(found.name or ".", FILE, dir_fd=found.folder)
        device = os.fstat(found.folder).st_dev
    except OSError as exc:
        raise refusal(exc) from None
    finally:
        os.close(found.folder)
    info = os.fstat(fd)
    if info.st_dev != device:
        os.close(fd)
        raise Refused("invalid_path", "%s is on another file system than its folder" % path[:200])
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        os.close(fd)
        raise Refused("not_a_file", "%s is neither a file nor a folder" % path[:200])
    return fd, info, found.path


def describe(path: str) -> Dict[str, Any]:
    """What is at path, a link described as such."""
    found = find(path, follow=False)
    try:
        name = found.name
        info = os.lstat(name, dir_fd=found.folder) if name else os.fstat(found.folder)
    except OSError as exc:
        raise refusal(exc) from None
    finally:
        os.close(found.folder)
    return entry(found.path, info)


def rename(path: str, to: str, *, replace: bool) -> Dict[str, Any]:
    """Move a file, a folder or a link, and describe it where it is then. Folders on the way are
    made. What is there already is replaced only if told, and a folder never."""
    source = find(path, follow=False)
    try:
        if not source.name:
            raise Refused(
                "invalid_path", "%s is a folder of the box itself and cannot be moved" % source.path
            )
        os.lstat(source.name, dir_fd=source.folder)
        # The kernel refuses to move a folder into itself, but only after folders were made there.
        target = find(to, follow=False, create=True, not_below=source.path)
        try:
            _check_target(target, replace=replace)
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
            return entry(target.path, os.lstat(target.name, dir_fd=target.folder))
        finally:
            os.close(target.folder)
    except OSError as exc:
        if exc.errno == errno.EXDEV:
            raise Refused("invalid_path", "%s and %s are on different disks" % (path, to)) from None
        raise refusal(exc) from None
    finally:
        os.close(source.folder)


def _check_target(target: Found, *, replace: bool) -> None:
    """Raises Refused."""
    try:
        there = os.lstat(target.name, dir_fd=target.folder) if target.name else None
    except FileNotFoundError:
        return
    if there is None or stat.S_ISDIR(there.st_mode):
        raise Refused("is_directory", "%s is a folder; name what is to be in it" % target.path)
    if not replace:
        raise Refused("invalid_path", "%s exists; set replace to overwrite it" % target.path)


def entry(path: str, status: os.stat_result) -> Dict[str, Any]:
    return {
        "name": os.path.basename(path),
        "path": path,
        "type": _TYPES.get(stat.S_IFMT(status.st_mode), "other"),
        "size": status.st_size,
        "mode": "%04o" % stat.S_IMODE(status.st_mode),
        "modified_at": status.st_mtime,
    }


def capacity(fd: int) -> int:
    """How much the file system of a file or folder can hold; a lot where it does not say."""
    try:
        info = os.fstatvfs(fd)
    except OSError:
        return 1 << 62
    return info.f_blocks * info.f_frsize or 1 << 62


def file_chunks(fd: int, size: int) -> Iterator[bytes]:
    """The first size bytes of a file; fewer where it has become shorter. Raises OSError."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(CHUNK, size - offset), offset)
        if not data:
            return
        offset += len(data)
        yield data


class Upload:
    """A file on its way in. It gets its name when it is whole; cut off, it leaves nothing."""

    def __init__(self, path: str, *, mode: int, limit: int) -> None:
        if path.endswith("/") or os.path.basename(path) in ("", ".", ".."):
            raise Refused("invalid_path", "%s does not name a file" % path[:200])
        found = find(path, follow=False, create=True)
        self.path = found.path
        self.size = 0
        self._limit = limit
        self._mode = mode
        self._name = found.name
        self._part = ".upload-" + os.urandom(8).hex()
        self._folder = found.folder
        try:
            self._fd = self._create()
        except BaseException:
            os.close(self._folder)
            raise

    def _create(self) -> int:
        if not self._name:
            raise Refused("is_directory", "%s is a folder" % self.path)
        try:
            if stat.S_ISDIR(os.lstat(self._name, dir_fd=self._folder).st_mode):
                raise Refused("is_directory", "%s is a folder" % self.path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise refusal(exc) from None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._part, flags, 0o600, dir_fd=self._folder)
        except OSError as exc:
            raise refusal(exc) from None

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise Refused(
                "file_too_large",
                "%s has more than %d bytes, the limit" % (self.path[:200], self._limit),
            )
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as exc:
            raise refusal(exc) from None

    def finish(self) -> None:
        try:
            os.fchmod(self._fd, self._mode)
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as exc:
            raise refusal(exc) from None
        self._part = ""
        self.close()

    def close(self) -> None:
        """Give up what was not finished. Closing twice is harmless."""
        if self._fd < 0:
            return
        if self._part:
            try:
                os.unlink(self._part, dir_fd=self._folder)
            except OSError:
                pass
        os.close(self._fd)
        os.close(self._folder)
        self._fd = -1
