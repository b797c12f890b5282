"""Errors that a warden answers requests with, and reports of its own on stderr, its only log."""

import errno
import os
import select
import sys
import time

_CODES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "disk_full"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "file_not_found"),
    errno.EISDIR: "is_directory",
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EXDEV), "invalid_path"),
    errno.EFBIG: "file_too_large",
    errno.ENXIO: "not_a_file",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "permission_denied"),
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE), "exhausted"),
}
_ADVICE = {
    errno.ENOENT: "does not exist; list its folder to see what is there",
    errno.ENOTDIR: "does not exist: a part of this path is a file, not a folder",
    errno.ENAMETOOLONG: "has a name that is too long: at most 255 bytes between two slashes",
    errno.EACCES: "may not be used by the sandbox (permission denied); change its mode with chmod",
    errno.EFBIG: "would be larger than a file may be here; write less, or several files",
}
_SHOWN = 200
"""Characters of a path in a message."""
_EVERY_S = 1.0
_MAX_SIZE = 2000
_PLACES = 12
_reported_at = float("-inf")


class Refused(Exception):
    """A request that cannot be served. `code` is for programs, the message for humans."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal(error: OSError, path: str = "") -> Refused:
    """A kernel error as Refused. path: the file or folder that the error is about."""
    number = error.errno or 0
    code = _CODES.get(number, "failed")
    why = error.strerror or str(error)
    if not path:
        return Refused(code, why)
    if number in _ADVICE:
        return Refused(code, "%s %s" % (shown(path), _ADVICE[number]))
    return Refused(code, "%s: %s" % (shown(path), why))


def shown(path: str) -> str:
    """A path as messages have it."""
    return path if len(path) <= _SHOWN else path[: _SHOWN - 1] + "\u2026"


def internal_error(error: Exception) -> str:
    """The message for a failure of the warden itself."""
    message = "internal error in the box's warden (%s): retry, or end the session"
    return message % type(error).__name__


def report() -> None:
    """Write the current exception to stderr.

    At most once a second, and never blocking.
    """
    global _reported_at
    try:
        now = time.monotonic()
        if now - _reported_at < _EVERY_S or not select.select([], [2], [], 0)[1]:
            return
        _reported_at = now
        os.write(2, _description().encode("utf-8", "replace")[:_MAX_SIZE])
    except Exception:
        pass  # No reader, or no memory or descriptors left.


def _description() -> str:
    """The exception and where it was raised. Not traceback.format_exc(), which loads modules and
    sources: there may be no memory or descriptor left for that."""
    kind, error, step = sys.exc_info()
    places = []
    while step is not None:
        code = step.tb_frame.f_code
        places.append(
            "%s:%d %s" % (os.path.basename(code.co_filename), step.tb_lineno, code.co_name)
        )
        step = step.tb_next
    name = kind.__name__ if kind is not None else ""
    return "sandbox: internal error: %s: %a (%s)\n" % (
        name,
        str(error),
        " > ".join(places[-_PLACES:]),
    )
