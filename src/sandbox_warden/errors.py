"""What a warden answers when it will not do what it was asked."""

import errno
import os
import select
import sys
import time

_CODES = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.ENOENT: "file_not_found",
    errno.ENOTDIR: "file_not_found",
    errno.EISDIR: "is_directory",
    errno.ENAMETOOLONG: "invalid_path",
    errno.ELOOP: "invalid_path",
    errno.ENXIO: "not_a_file",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.EAGAIN: "exhausted",
    errno.ENOMEM: "exhausted",
    errno.EMFILE: "exhausted",
    errno.ENFILE: "exhausted",
}


class Refused(Exception):
    """A request that cannot be served. `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal(error: OSError) -> Refused:
    """The same thing for what the kernel refused."""
    code = _CODES.get(error.errno or 0, "failed")
    return Refused(code, error.strerror or str(error))


def internal_error(error: Exception) -> str:
    """What a caller is told where the warden itself has failed."""
    return "the box's warden failed to do this (%s)" % type(error).__name__


_REPORT_EVERY_S = 1.0
_REPORT_SIZE = 4000
_reported_at = float("-inf")


def report() -> None:
    """Write the exception that is being handled to stderr, for whoever looks after the box.

    Not more often than once a second, and never where that would have to wait.
    """
    global _reported_at
    try:
        now = time.monotonic()
        if now - _reported_at < _REPORT_EVERY_S or not select.select([], [2], [], 0)[1]:
            return
        _reported_at = now
        os.write(2, _description().encode("utf-8", "replace")[-_REPORT_SIZE:])
    except Exception:
        pass  # Nobody is there to read it, or nothing is left to write it with.


def _description() -> str:
    try:
        import traceback  # Only boxes that need it pay for it.

        return "sandbox: internal error\n%s" % traceback.format_exc()
    except Exception:
        return "sandbox: internal error: %s\n" % sys.exc_info()[0]
