"""This run of the tests: its id, which is in the name of everything it makes.

Others may run boxes on the same machine and the same engine meanwhile.
"""

import os
import shutil
import tempfile
import uuid
from pathlib import Path

VARIABLE = "SANDBOX_TEST_RUN"

RUN = os.environ.setdefault(VARIABLE, uuid.uuid4().hex[:8])
"""The same in every process of the run: they inherit it."""


def open_temporary_folder() -> None:
    """A temporary folder of the run's own, for all its processes: of what stands in a shared one
    nobody knows who made it. The folders of tests stay where pytest has them."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short, as paths of sockets end at 108 bytes.
    folder = Path(tempfile.gettempdir(), f"sb-{RUN}")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # Some tests are run as other users.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def remove_temporary_folder() -> None:
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


def run_owner(name: str) -> str:
    """An owner of boxes that no other run has."""
    return f"{name}-{RUN}"
