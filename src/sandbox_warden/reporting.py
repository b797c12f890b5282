"""Reports internal errors of the warden on stderr, its only log."""

import os
import select
import sys
import time

_EVERY_S = 1.0
_MAX_SIZE = 2000
_PLACES = 12
_reported_at = float("-inf")


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
