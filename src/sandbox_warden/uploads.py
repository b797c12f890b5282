"""Files being received. They get their names when they are complete."""

import errno
import os
import stat
from typing import Callable, Dict, List, Optional, Set

from . import metadata
from .errors import Refused, shown
from .paths import find, refusal_at
from .walk import BEING_RECEIVED

_WITHOUT_NAME = getattr(os, "O_TMPFILE", 0)
_NOT_KNOWN = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""What file systems answer that have no files without a name; gVisor is one."""

UNNAMED: Set[str] = set()
"""What the kernel calls files without a name, to those who watch their folder."""
REPLACING: Set[str] = set()
"""Of the names in BEING_RECEIVED, those that are about to replace a file."""
BEFORE_SHOWN: List[Callable[[], None]] = []
"""Called before a hidden name is forgotten: who watches folders reads what was told of it."""
ON_STORED: List[Callable[[str, bool], None]] = []
"""Called with the path of a file that was received, and whether there was none before."""


def hide(folder: str) -> str:
    """A name in a folder that listings and watches leave out, until it is forgotten."""
    name = ".upload-" + os.urandom(8).hex()
    BEING_RECEIVED[name] = os.path.join(folder, name)
    return name


def forget(name: str) -> None:
    """Let a name be seen again. Idempotent."""
    if name in BEING_RECEIVED or name in UNNAMED:
        for call in BEFORE_SHOWN:
            call()
        BEING_RECEIVED.pop(name, None)
        UNNAMED.discard(name)
        REPLACING.discard(name)


class Upload:
    """A file being received. It gets its name when complete; an aborted one leaves nothing. Where
    the file system can do it, it has no name before, so that no process of the box sees one."""

    def __init__(
        self, path: str, *, mode: int, limit: int, about: Optional[Dict[str, str]] = None
    ) -> None:
        """about: metadata of the file."""
        if path.endswith("/") or os.path.basename(path) in ("", ".", ".."):
            raise Refused("invalid_path", "%s does not name a file; add a file name" % shown(path))
        found = find(path, follow=False, create=True)
        self.path = found.path
        self.size = 0
        self._limit = limit
        self._mode = mode
        self._name = found.name
        self._part = ""
        """The name it has meanwhile."""
        self._unnamed = ""
        self._folder = found.folder
        self._fd = -1
        try:
            self._fd = self._create()
            metadata.write(self._fd, about or {}, self.path)
        except OSError as exc:
            refused = refusal_at(self.path, self._folder, exc)
            self._discard()
            raise refused from None
        except BaseException:
            self._discard()
            raise

    def _create(self) -> int:
        """Raises OSError, Refused."""
        if not self._name or self._is_folder():
            raise Refused("is_directory", "%s is a folder; add a file name" % self.path)
        if _WITHOUT_NAME:
            try:
                flags = os.O_WRONLY | _WITHOUT_NAME | os.O_CLOEXEC
                fd = os.open(".", flags, 0o600, dir_fd=self._folder)
                self._unnamed = "#%d" % os.fstat(fd).st_ino
                UNNAMED.add(self._unnamed)
                return fd
            except OSError as exc:
                if exc.errno not in _NOT_KNOWN:
                    raise
        self._part = hide(os.path.dirname(self.path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._part, flags, 0o600, dir_fd=self._folder)

    def _is_folder(self) -> bool:
        try:
            return stat.S_ISDIR(os.lstat(self._name, dir_fd=self._folder).st_mode)
        except FileNotFoundError:
            return False

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
            is_new = self._get_name()
        except OSError as exc:
            raise refusal_at(self.path, self._folder, exc) from None
        for stored in ON_STORED:
            stored(self.path, is_new)
        self._close()  # Last: with gVisor, who watches is told of this too.
        self._forget()

    def _get_name(self) -> bool:
        """Whether it was free. To replace a file, one needs a name first."""
        if not self._part:
            try:
                self._link(self._name)
                return True
            except FileExistsError:
                self._part = hide(os.path.dirname(self.path))
                self._link(self._part)
        is_new = not _exists(self._folder, self._name)
        if not is_new:
            REPLACING.add(self._part)
        os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        return is_new

    def _link(self, name: str) -> None:
        os.link("/proc/self/fd/%d" % self._fd, name, dst_dir_fd=self._folder, follow_symlinks=True)

    def _forget(self) -> None:
        forget(self._unnamed)
        forget(self._part)
        self._part = self._unnamed = ""

    def close(self) -> None:
        """Discard an unfinished upload. Idempotent."""
        if self._fd >= 0:
            self._discard()

    def _discard(self) -> None:
        if self._part and self._fd >= 0:
            try:
                os.unlink(self._part, dir_fd=self._folder)
            except OSError:
                pass
        self._close()
        self._forget()  # After the last change: nobody is to be told of any.

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        os.close(self._folder)
        self._fd = -1


def _exists(folder: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except OSError:
        return False
    return True
