"""Requests that are generated from the OpenAPI document, each kind in a process of its own: pytest
would have every process that collects tests work them all out, which took longer than most
tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import VARIABLES
from tests.run import VARIABLE

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.rest("test_anything", "test_real_boxes")
@pytest.mark.parametrize(
    "name", ["test_anything", "test_calls_that_have_a_target", "test_real_boxes"]
)
def test_generated_requests(name: str) -> None:
    file = Path(__file__).with_name("generated_requests.py")
    # Its own run, which leaves nothing behind, in no lane.
    foreign = ("PYTEST_", VARIABLE, *VARIABLES)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "schemathesis.pytest.plugin", f"{file}::{name}"),
        ],
        env=kept,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
