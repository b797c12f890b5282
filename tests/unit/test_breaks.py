"""The patches of tests/breaks are for the code as it is: who changes that, changes them."""

from pathlib import Path

import pytest

from tests.breaks.patches import Patch, patches

ROOT = Path(__file__).parents[2]


def test_there_are_enough() -> None:
    assert len(list(patches())) >= 40


@pytest.mark.parametrize("patch", list(patches()), ids=lambda patch: patch.name)
def test_it_applies_and_names_tests(patch: Patch) -> None:
    patch.apply(ROOT, try_only=True)
    assert [test for test in patch.tests if not (ROOT / test.partition("::")[0]).exists()] == []
