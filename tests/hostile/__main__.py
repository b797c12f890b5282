"""Runs the tests of all cases and writes docs/security.md: `make hostile`."""

import sys
from pathlib import Path

import pytest

from tests.hostile.cases import CASES

TESTS = Path(__file__).parents[1]


def main() -> int:
    """Arguments are passed on to pytest."""
    named = {test for case in CASES for test in case.tests}
    there = sorted(f"tests/{test}" for test in named if (TESTS / test.partition("::")[0]).exists())
    return int(pytest.main(["-p", "tests.hostile.report", *sys.argv[1:], *there]))


sys.exit(main())
