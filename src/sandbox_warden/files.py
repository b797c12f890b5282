"""Files of the box, as its user sees them.

A path is resolved first and then opened step by step without following any link, so a link that is
swapped in between is an error and never a way out. Only the writable places are served: the warden
could read its own /proc/1, which the user may not.
"""

import os
import stat
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .errors import Refused, refusal
from .frames import CHUNK
from .shell import WORKSPACE

HOME = "/home/sandboxuser"
PLACES = (WORKSPACE, HOME, "/tmp", "/dev/shm")

_MAX_PATH = 4096
_MAX_DEPTH = 256
_MAX_NAMES = 50_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def open_path(path: str) -> Tuple[int, os.stat_result, str]:
    """A descriptor of the file or folder at path, what it is, and its real path.

    Raises Refused for a path outside the writable places and for what cannot be read as a file:
    a pipe, a socket or a device is never waited for.
    """
    place, parts = _resolve(path, last=True)
    fd = _open_folder(place, parts[:-1])
    device = os.fstat(fd).st_dev
    if parts:
        parent = fd
        try:
            fd = os.open(parts[-1], _FILE, dir_fd=parent)
        except OSError as exc:
            raise refusal(exc) from None
        finally:
            os.close(parent)
    info = os.fstat(fd)
    if info.st_dev != device:
        os.close(fd)
        raise Refused("invalid_path", "%s leads out of %s" % (path[:200], place))
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        os.close(fd)
        raise Refused("not_a_file", "%s is neither a file nor a folder" % path)
    return fd, info, os.path.join(place, *parts)


def describe(path: str) -> Dict[str, Any]:
    """What is at path, a link described as such."""
    place, parts = _resolve(path, last=False)
    real = os.path.join(place, *parts)
    fd = _open_folder(place, parts[:-1])
    try:
        info = os.lstat(parts[-1], dir_fd=fd) if parts else os.fstat(fd)
    except OSError as exc:
        raise refusal(exc) from None
    finally:
        os.close(fd)
    return _entry(os.path.basename(real), real, info)


def entries(path: str, *, recursive: bool, limit: int) -> Tuple[List[Dict[str, Any]], bool]:
    """Up to limit entries below path, and whether there are more."""
    fd, info, real = open_path(path)
    if not stat.S_ISDIR(info.st_mode):
        os.close(fd)
        return [_entry(os.path.basename(real), real, info)], False
    found: List[Dict[str, Any]] = []
    try:
        for relative, folder, names in _walk(fd, recursive=recursive):
            for name in names:
                if len(found) >= limit:
                    return found, True
                try:
                    status = os.lstat(name, dir_fd=folder)
                except OSError:
                    continue
                found.append(_entry(name, os.path.join(real, relative, name), status))
    finally:
        os.close(fd)
    return found, False


def file_chunks(fd: int, size: int) -> Iterator[bytes]:
    """The first size bytes of a file; an error where it has become shorter meanwhile."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(CHUNK, size - offset), offset)
        if not data:
            raise Refused("changed", "the file became shorter while it was read")
        offset += len(data)
        yield data


def tar_chunks(fd: int) -> Iterator[bytes]:
    """A folder as a tar stream: files, folders and links; links are kept as links."""
    import tarfile  # Only boxes that need it pay for it.

    for relative, folder, names in _walk(fd, recursive=True):
        for name in names:
            try:
                status = os.lstat(name, dir_fd=folder)
            except OSError:
                continue
            member = tarfile.TarInfo(os.path.join(relative, name))
            member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
            member.uid = member.gid = 1000
            if stat.S_ISDIR(status.st_mode):
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(status.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
            elif not stat.S_ISREG(status.st_mode):
                continue
            yield from _member_chunks(member, name, folder)
    yield bytes(1024)


def _member_chunks(member: Any, name: str, folder: int) -> Iterator[bytes]:
    if not member.isreg():
        yield member.tobuf(errors="surrogateescape")
        return
    try:
        fd = os.open(name, _FILE, dir_fd=folder)
    except OSError as exc:
        raise refusal(exc) from None
    try:
        member.size = os.fstat(fd).st_size
        yield member.tobuf(errors="surrogateescape")
        yield from file_chunks(fd, member.size)
        yield bytes(-member.size % 512)
    finally:
        os.close(fd)


class Upload:
    """A file on its way in. It gets its name when it is whole; cut off, it leaves nothing."""

    def __init__(self, path: str, *, mode: int, limit: int) -> None:
        if path.endswith("/") or os.path.basename(path) in ("", ".", ".."):
            raise Refused("invalid_path", "%s does not name a file" % path)
        place, parts = _resolve(path, last=False)
        if not parts:
            raise Refused("is_directory", "%s is a folder" % path)
        self.path = os.path.join(place, *parts)
        self.size = 0
        self._limit = limit
        self._mode = mode
        self._name = parts[-1]
        self._part = ".upload-" + os.urandom(8).hex()
        self._folder = _open_folder(place, parts[:-1], create=True)
        try:
            self._fd = self._create()
        except BaseException:
            os.close(self._folder)
            raise

    def _create(self) -> int:
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
            raise Refused("file_too_large", "more than %d bytes" % self._limit)
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


def _resolve(path: str, *, last: bool) -> Tuple[str, List[str]]:
    """The writable place a path lies in and the steps from there.

    last: whether a link in the last step is followed too.
    """
    if not path or "\0" in path or len(os.fsencode(path)) > _MAX_PATH:
        raise Refused("invalid_path", "a path has 1 to %d bytes and no NUL" % _MAX_PATH)
    path = os.path.join(WORKSPACE, path)
    if last:
        real = os.path.realpath(path)
    else:
        folder, name = os.path.split(path.rstrip("/"))
        if name in (".", ".."):
            folder, name = path, ""
        real = os.path.join(os.path.realpath(folder), name).rstrip("/")
    for place in PLACES:
        if real == place or real.startswith(place + "/"):
            return place, [part for part in real[len(place) :].split("/") if part]
    raise Refused("invalid_path", "%s is outside of %s" % (path[:200], ", ".join(PLACES)))


def _open_folder(place: str, parts: List[str], *, create: bool = False) -> int:
    try:
        fd = os.open(place, _FOLDER)
    except OSError as exc:
        raise refusal(exc) from None
    device = os.fstat(fd).st_dev
    for part in parts:
        parent = fd
        try:
            if create:
                try:
                    os.mkdir(part, 0o755, dir_fd=parent)
                except FileExistsError:
                    pass
            fd = os.open(part, _FOLDER, dir_fd=parent)
        except OSError as exc:
            raise refusal(exc) from None
        finally:
            os.close(parent)
        # Every place is a file system of its own: a second fence, where the first has a hole.
        if os.fstat(fd).st_dev != device:
            os.close(fd)
            raise Refused("invalid_path", "%s leads out of %s" % (part[:200], place))
    return fd


def _walk(root: int, *, recursive: bool) -> Iterator[Tuple[str, int, List[str]]]:
    """Folders below root, each as its relative path, an open descriptor and its sorted names."""
    todo = [""]
    while todo:
        relative = todo.pop()
        folder = _descend(root, relative)
        if folder is None:
            continue
        try:
            names, folders = _names(folder)
            yield relative, folder, names
        finally:
            os.close(folder)
        if recursive:
            if folders and relative.count("/") >= _MAX_DEPTH:
                raise Refused("invalid_path", "folders nested more than %d deep" % _MAX_DEPTH)
            todo.extend(os.path.join(relative, name) for name in reversed(folders))


def _descend(root: int, relative: str) -> Optional[int]:
    """Open a folder again from the top, no link followed. None where it has gone meanwhile."""
    fd = os.dup(root)
    for part in relative.split("/") if relative else ():
        parent = fd
        try:
            fd = os.open(part, _FOLDER, dir_fd=parent)
        except OSError:
            return None
        finally:
            os.close(parent)
    return fd


def _names(folder: int) -> Tuple[List[str], List[str]]:
    names, folders = [], []
    with os.scandir(folder) as found:
        for entry in found:
            names.append(entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            if len(names) >= _MAX_NAMES:
                break
    return sorted(names), sorted(folders)


def _entry(name: str, path: str, status: os.stat_result) -> Dict[str, Any]:
    return {
        "name": name,
        "path": path,
        "type": _TYPES.get(stat.S_IFMT(status.st_mode), "other"),
        "size": status.st_size,
        "mode": "%04o" % stat.S_IMODE(status.st_mode),
        "modified_at": status.st_mtime,
    }
