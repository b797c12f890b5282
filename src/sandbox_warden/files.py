"""Files of the box: opening, describing, moving, uploading."""

import errno
import os
import stat
from typing import Any, Dict, Iterator, Tuple

from .errors import Refused, shown
from .frames import CHUNK
from .paths import VOLUMES, Found, find, refusal_at
from .walk import BEING_RECEIVED

FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def open_path(path: str) -> Tuple[int, os.stat_result, str]:
    """A descriptor of the file or folder at path, its stat, and its real path.

    Raises Refused for a path outside the writable places, and for a pipe, socket or device: reading
    one might block.
    """
    found = find(path, follow=True)
    try:
        fd = os.open(found.name or ".", FILE, dir_fd=found.folder)
        device = os.fstat(found.folder).st_dev
    except OSError as exc:
        raise refusal_at(found.path, found.folder, exc) from None
    finally:
        os.close(found.folder)
    info = os.fstat(fd)
    if info.st_dev != device and found.path not in VOLUMES:
        os.close(fd)
        raise Refused(
            "invalid_path", "%s is on another file system than its folder" % shown(found.path)
        )
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        os.close(fd)
        raise Refused("not_a_file", "%s is neither a file nor a folder" % shown(found.path))
    return fd, info, found.path


def describe(path: str) -> Dict[str, Any]:
    """The entry at path; links are not followed."""
    found = find(path, follow=False)
    try:
        name = found.name
        info = os.lstat(name, dir_fd=found.folder) if name else os.fstat(found.folder)
    except OSError as exc:
        raise refusal_at(found.path, found.folder, exc) from None
    finally:
        os.close(found.folder)
    return entry(found.path, info)


def rename(path: str, to: str, *, replace: bool) -> Dict[str, Any]:
    """Move a file, folder or link; returns its new entry. Missing folders are created. An existing
    target is replaced only with `replace`, a folder never."""
    source = find(path, follow=False)
    try:
        if not source.name:
            raise Refused(
                "invalid_path", "%s is a folder of the box itself and cannot be moved" % source.path
            )
        os.lstat(source.name, dir_fd=source.folder)
        # The kernel refuses to move a folder into itself, but by then folders would be created.
        target = find(to, follow=False, create=True, not_below=source.path)
        try:
            _check_target(target, replace=replace)
            os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
            return entry(target.path, os.lstat(target.name, dir_fd=target.folder))
        finally:
            os.close(target.folder)
    except OSError as exc:
        if exc.errno == errno.EXDEV:
            message = "%s and %s are on different disks; copy it with cp -a, then delete it"
            raise Refused("invalid_path", message % (shown(path), shown(to))) from None
        raise refusal_at(source.path, source.folder, exc) from None
    finally:
        os.close(source.folder)


def _check_target(target: Found, *, replace: bool) -> None:
    """Raises Refused."""
    try:
        there = os.lstat(target.name, dir_fd=target.folder) if target.name else None
    except FileNotFoundError:
        return
    if there is None or stat.S_ISDIR(there.st_mode):
        raise Refused("is_directory", "%s is a folder; add a file name" % target.path)
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
    """Size of the file system of a descriptor; a large number if unknown."""
    try:
        info = os.fstatvfs(fd)
    except OSError:
        return 1 << 62
    return info.f_blocks * info.f_frsize or 1 << 62


def file_chunks(fd: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file; fewer if it was truncated. Raises OSError."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(CHUNK, size - offset), offset)
        if not data:
            return
        offset += len(data)
        yield data


class Upload:
    """A file being received. It gets its name when complete; an aborted one leaves nothing."""

    def __init__(self, path: str, *, mode: int, limit: int) -> None:
        if path.endswith("/") or os.path.basename(path) in ("", ".", ".."):
            raise Refused("invalid_path", "%s does not name a file; add a file name" % shown(path))
        found = find(path, follow=False, create=True)
        self.path = found.path
        self.size = 0
        self._limit = limit
        self._mode = mode
        self._name = found.name
        self._part = ".upload-" + os.urandom(8).hex()
        self._folder = found.folder
        BEING_RECEIVED[self._part] = os.path.join(os.path.dirname(found.path), self._part)
        try:
            self._fd = self._create()
        except BaseException:
            BEING_RECEIVED.pop(self._part, None)
            os.close(self._folder)
            raise

    def _create(self) -> int:
        if not self._name:
            raise Refused("is_directory", "%s is a folder; add a file name" % self.path)
        try:
            if stat.S_ISDIR(os.lstat(self._name, dir_fd=self._folder).st_mode):
                raise Refused("is_directory", "%s is a folder; add a file name" % self.path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise refusal_at(self.path, self._folder, exc) from None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._part, flags, 0o600, dir_fd=self._folder)
        except OSError as exc:
            raise refusal_at(self.path, self._folder, exc) from None

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise Refused(
                "file_too_large",
                "%s has more than %d bytes, the limit" % (shown(self.path), self._limit),
            )
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as exc:
            raise refusal_at(self.path, self._folder, exc) from None

    def finish(self) -> None:
        try:
            os.fchmod(self._fd, self._mode)
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as exc:
            raise refusal_at(self.path, self._folder, exc) from None
        BEING_RECEIVED.pop(self._part, None)
        self._part = ""
        self.close()

    def close(self) -> None:
        """Discard an unfinished upload. Idempotent."""
        if self._fd < 0:
            return
        if self._part:
            try:
                os.unlink(self._part, dir_fd=self._folder)
            except OSError:
                pass
            BEING_RECEIVED.pop(self._part, None)
        os.close(self._fd)
        os.close(self._folder)
        self._fd = -1
