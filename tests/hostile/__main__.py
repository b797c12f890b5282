"""Runs the tests of all cases and writes docs/security.md: `make hostile`."""

import sys

import pytest

from tests.hostile.cases import CASES, exists


def main() -> int:
    """Arguments are passed on to pytest."""
    named = dict.fromkeys(test for case in CASES for test in case.tests)
    there = [f"tests/{test}" for test in named if exists(test)]
    return int(pytest.main(["-p", "tests.hostile.report", *sys.argv[1:], *there]))


sys.exit(main())
