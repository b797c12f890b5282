"""Folders of any size are walked in order, in slices and in bounded memory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_warden import walk
from sandbox_warden.errors import Refused
from sandbox_warden.tar import Tar
from sandbox_warden.walk import Item, Walk

names = st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=4), unique=True)


@given(names, st.integers(1, 12) | st.none(), st.integers(1, 5))
def test_the_smallest_names_are_kept(found: list[str], most: int | None, slice_: int) -> None:
    kept = walk._Names(most)
    for number, name in enumerate(found, start=1):
        kept.add(name)
        if number % slice_ == 0:
            kept.settle()
    kept.settle()
    first, more = kept.first()
    expected = sorted(found)[:most]
    assert (list(first), more) == (expected, len(found) > len(expected))


def walked(folder: Path, *, room: int | None = None) -> tuple[list[str], list[str], int]:
    """Paths, what was left out, and how often others had their turn."""
    fd = os.open(folder, os.O_RDONLY)
    left: list[str] = []
    found: list[str] = []
    turns = 0
    try:
        wanted = None if room is None else lambda: room - len(found)
        for item in Walk(fd, recursive=True, left_out=lambda p, _: left.append(p), room=wanted):
            if isinstance(item, Item):
                found.append(item.path)
            else:
                turns += 1
            if room is not None and len(found) > room:
                break
    finally:
        os.close(fd)
    return found, left, turns


def test_order_and_turns(tmp_path: Path) -> None:
    for folder in ("b", "a"):
        (tmp_path / folder).mkdir()
        for number in range(5000):
            (tmp_path / folder / f"{number * 7919 % 5000:04}").touch()
    found, left, turns = walked(tmp_path)
    inside = [f"{number:04}" for number in range(5000)]
    assert found == ["a", "b", *(f"a/{n}" for n in inside), *(f"b/{n}" for n in inside)]
    assert left == []
    assert turns >= 2 * (5000 // 2000 + 5000 // 100)
    first, _, turns = walked(tmp_path, room=10)
    assert first == found[:11]
    assert turns < 10


def test_more_names_than_can_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "_NAMES_BYTES", 100 * (64 + 4))
    monkeypatch.setattr(walk, "_SCAN_SLICE", 10)
    for number in range(150):
        (tmp_path / f"{number:04}").touch()
    with pytest.raises(Refused, match="too many names in the folder"):
        walked(tmp_path)
    found, left, _ = walked(tmp_path, room=1000)
    assert found == [f"{number:04}" for number in range(len(found))]
    assert (50 <= len(found) <= 100, left) == (True, [""])
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(Refused):
        list(Tar(fd))
    os.close(fd)


def test_more_folders_than_can_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "_NAMES_BYTES", 100 * (64 + 4))
    for top in ("a", "b"):
        for number in range(60):
            (tmp_path / top / f"{number:04}" / "x").mkdir(parents=True)
    walked(tmp_path)
    monkeypatch.setattr(walk, "_NAMES_BYTES", 60 * (64 + 4) + 10)
    with pytest.raises(Refused, match="too many folders"):
        walked(tmp_path)
