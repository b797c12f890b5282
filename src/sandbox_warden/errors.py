"""Errors that a warden answers requests with."""

import errno

_CODES = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.ENOENT: "file_not_found",
    errno.ENOTDIR: "file_not_found",
    errno.EISDIR: "is_directory",
    errno.ENAMETOOLONG: "invalid_path",
    errno.ELOOP: "invalid_path",
    errno.EINVAL: "invalid_path",
    errno.EXDEV: "invalid_path",
    errno.EFBIG: "file_too_large",
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
    """A request that cannot be served. `code` is for programs, the message for humans."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal(error: OSError) -> Refused:
    """A kernel error as Refused."""
    code = _CODES.get(error.errno or 0, "failed")
    return Refused(code, error.strerror or str(error))


def internal_error(error: Exception) -> str:
    """The message for a failure of the warden itself."""
    message = "internal error in the box's warden (%s): retry, or end the session"
    return message % type(error).__name__
