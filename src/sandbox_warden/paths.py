"""Paths of the box, resolved one step at a time.

Every step is opened without following links; links are read and followed here, as text, so swapping
one in meanwhile causes an error and is no way out. What the user of the box may read is served
anywhere, but the warden's own /proc entry, which the user may not; written is in the places alone.
"""

import contextlib
import errno
import os
import stat
from typing import Iterator, List, NamedTuple, Optional

from .errors import Refused, refusal, shown
from .processes import is_warden
from .state import WORKSPACE

HOME = "/home/sandboxuser"
"""The home, or a link to it in a box whose user has another name."""
PLACES: List[str] = [WORKSPACE, HOME, "/tmp", "/dev/shm"]
"""What can be written to. The second is the home."""
VOLUMES: List[str] = []
"""Paths of the volumes of the box, directly in /workspace: file systems of their own that outlive
it."""
MAX_PATH = 4096

_MAX_LINKS = 40
"""The kernel's limit."""
_MAX_STEPS = 10_000
"""Most steps of one path, links included: a few nested links can make millions."""
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def set_home(path: str) -> None:
    PLACES[1] = path


def in_home(path: str) -> str:
    """A path in the home of any box, in that of this one."""
    parts = path.split("/", 3)
    if parts[:2] != ["", "home"] or len(parts) < 3:
        return path
    return "/".join([PLACES[1], *parts[3:]])


class Found(NamedTuple):
    """Where a path leads: an open folder, which the caller closes, and a name in it. The name is
    empty if the path is the folder itself."""

    folder: int
    name: str
    path: str


def find(
    path: str, *, follow: bool, write: bool = False, create: bool = False, not_below: str = ""
) -> Found:
    """Resolve a path relative to /workspace. The last name need not exist.

    follow: also follow a link in the last step. write: it must be in a writable place. create: so,
    and create missing folders. not_below: a real path that it must not lead into. Raises Refused.
    """
    write = write or create
    if not path or "\0" in path or _size(path) > MAX_PATH:
        message = "path %r: a path must have 1 to %d bytes and no NUL character"
        raise Refused("invalid_path", message % (shown(path), MAX_PATH))
    search = _Search(path)
    try:
        search.go(follow=follow)
        search.check_not_below(not_below)
        return search.found(write=write, create=create)
    except Refused:
        search.close()
        if write and search.is_outside:
            raise search.outside() from None  # Whatever is there, it could not be written.
        raise
    except BaseException:
        search.close()
        raise


@contextlib.contextmanager
def found_at(
    path: str, *, follow: bool, write: bool = False, create: bool = False
) -> Iterator[Found]:
    """What find() finds, with its folder open inside. An OSError inside is about it."""
    found = find(path, follow=follow, write=write, create=create)
    try:
        yield found
    except OSError as exc:
        raise refusal_at(found.path, found.folder, exc) from None
    finally:
        os.close(found.folder)


class _Search:
    def __init__(self, path: str) -> None:
        self._asked = os.path.join(WORKSPACE, path)
        self._todo = _reversed_steps(self._asked)
        self._real: List[str] = []
        """The folders passed so far, from the root."""
        self._missing: List[str] = []
        """The steps below `_real` that do not exist; `..` just removes one."""
        self._place: Optional[str] = None
        """The writable place that it is in."""
        self._folder = -1
        """Not open before the first step."""
        self._device = -1
        self._name = ""
        self._links = self._steps = 0

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def go(self, *, follow: bool) -> None:
        while self._todo:
            self._count()
            step = self._todo.pop()
            if step == "..":
                self._up()
            elif self._missing:
                self._missing.append(step)
            elif self._todo or follow or self._below(step) in PLACES:
                self._down(step, last=not self._todo)
            else:
                self._name = step

    @property
    def is_outside(self) -> bool:
        return self._place is None

    def outside(self) -> Refused:
        message = "%s is outside of the folders that can be written to: %s"
        return Refused("invalid_path", message % (shown(self._asked), ", ".join(PLACES)))

    def check_not_below(self, path: str) -> None:
        """Call before creating folders."""
        steps = [*self._real, *self._missing, self._name]
        if path and ("/" + "/".join(steps) + "/").startswith(path + "/"):
            raise Refused("invalid_path", "%s leads into %s" % (shown(self._asked), path))

    def found(self, *, write: bool, create: bool) -> Found:
        if write and self._place is None:
            raise self.outside()
        if self._folder < 0:
            self._reopen(self._real)
        if self._missing:
            self._name = self._missing.pop()
            if self._missing and not create:
                raise refusal(FileNotFoundError(errno.ENOENT, ""), self._asked)
            for name in self._missing:
                self._make(name)
        path = "/" + "/".join([*self._real, self._name] if self._name else self._real)
        if _size(path) > MAX_PATH:
            message = "%s leads to a path of more than %d bytes" % (shown(self._asked), MAX_PATH)
            raise Refused("invalid_path", message)
        return Found(self._folder, self._name, path)

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            message = "%s has more than %d steps, links included" % (shown(self._asked), _MAX_STEPS)
            raise Refused("invalid_path", message)

    def _up(self) -> None:
        if self._missing:
            self._missing.pop()
        elif self._real:
            self._reopen(self._real[:-1])

    def _below(self, name: str) -> str:
        return "/" + "/".join([*self._real, name])

    def _down(self, name: str, *, last: bool) -> None:
        if self._below(name) in PLACES:
            self._reopen([*self._real, name])
            return
        if self._folder < 0:
            self._reopen(self._real)
        try:
            self._enter(name)
        except OSError as exc:
            if exc.errno == errno.ENOENT:
                self._missing.append(name)
            elif exc.errno not in (errno.ENOTDIR, errno.ELOOP):
                if not last:
                    raise refusal_at(self._asked, self._folder, exc) from None
                self._name = name  # Not a folder; the caller decides what to do with it.
            elif not self._follow_link(name):
                if not last:
                    raise refusal_at(self._asked, self._folder, exc) from None
                self._name = name

    def _enter(self, name: str) -> None:
        """Raises OSError for anything but a folder, links included."""
        if is_warden(self._folder, name):
            message = "%s leads to the process that serves files here, which is not to be read"
            raise Refused("invalid_path", message % shown(self._asked))
        folder = os.open(name, _STEP, dir_fd=self._folder)
        info = os.fstat(folder)
        if not stat.S_ISDIR(info.st_mode):  # gVisor ignores O_DIRECTORY for a socket.
            os.close(folder)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        os.close(self._folder)
        self._folder = folder
        self._real.append(name)
        # Every place is a file system of its own: a second line of defence.
        if self._place is None or "/" + "/".join(self._real) in VOLUMES:
            self._device = info.st_dev
        if info.st_dev != self._device:
            raise Refused("invalid_path", "%s leads out of %s" % (shown(self._asked), self._place))

    def _follow_link(self, name: str) -> bool:
        """False if it is not a link."""
        try:
            self._follow(os.readlink(name, dir_fd=self._folder))
        except OSError:
            return False
        return True

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise Refused(
                "invalid_path",
                "%s leads through more than %d links" % (shown(self._asked), _MAX_LINKS),
            )
        self._todo += _reversed_steps(target)
        if target.startswith("/"):
            self._reopen([])

    def _reopen(self, real: List[str]) -> None:
        """Restart at these folders, none of which was a link when passed."""
        self.close()
        path = "/" + "/".join(real)
        inside = [p for p in PLACES if path == p or path.startswith(p + "/")]
        self._place = inside[0] if inside else None
        start = self._place or "/"
        steps = [step for step in path[len(start) :].split("/") if step]
        self._real = [step for step in start.split("/") if step]
        try:
            self._folder = os.open(start, _STEP)
            self._device = os.fstat(self._folder).st_dev
            for step in steps:
                self._count()
                self._enter(step)
        except OSError as exc:
            raise refusal_at(self._asked, self._folder, exc) from None

    def _make(self, name: str) -> None:
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=self._folder)
            except FileExistsError:
                pass
            self._enter(name)
        except OSError as exc:
            raise refusal_at(self._asked, self._folder, exc) from None


def is_inside(path: str) -> bool:
    """Whether a path without links is in a writable place."""
    return any(path == place or path.startswith(place + "/") for place in PLACES)


def in_volume(path: str) -> bool:
    """Whether a path without links is a volume, or in one."""
    return any(path == volume or path.startswith(volume + "/") for volume in VOLUMES)


def refusal_at(path: str, folder: int, error: OSError) -> Refused:
    """A kernel error about a path as Refused. folder: a descriptor on its disk, or -1."""
    if folder < 0 or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return refusal(error, path)
    places = (*VOLUMES, *PLACES)
    place = next((p for p in places if (path + "/").startswith(p + "/")), WORKSPACE)
    message = "%s of the sandbox is full%s, so there is no room for %s; delete files there"
    return Refused("disk_full", message % (place, _holds(folder), shown(path)))


def _holds(folder: int) -> str:
    try:
        disk = os.fstatvfs(folder)
    except OSError:
        return ""
    if disk.f_files and not disk.f_favail:
        return " (it holds %d files and folders)" % disk.f_files
    return " (it holds %.4g MiB)" % (disk.f_blocks * disk.f_frsize / 2**20)


def _reversed_steps(path: str) -> List[str]:
    return [step for step in reversed(path.split("/")) if step not in ("", ".")]


def _size(path: str) -> int:
    try:
        return len(os.fsencode(path))
    except UnicodeEncodeError:
        raise Refused(
            "invalid_path", "the path is not valid Unicode: it contains a lone surrogate"
        ) from None
