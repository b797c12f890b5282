"""This run of the tests: its id, which is in the name of everything it makes.

Others may run boxes on the same machine and the same engine meanwhile.
"""

import os
import uuid

VARIABLE = "SANDBOX_TEST_RUN"

RUN = os.environ.setdefault(VARIABLE, uuid.uuid4().hex[:8])
"""The same in every process of the run: they inherit it."""


def run_owner(name: str) -> str:
    """An owner of boxes that no other run has."""
    return f"{name}-{RUN}"
