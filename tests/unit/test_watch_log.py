"""What a watch keeps, and how it tells what it does not."""

import pytest

from sandbox_warden.errors import Refused
from sandbox_warden.watch_log import MAX_BYTES, MAX_EVENTS, Watch


@pytest.fixture
def watch() -> Watch:
    return Watch("/workspace", (1, 2), recursive=True)


def kinds(watch: Watch, after: int) -> list[str]:
    return [each["kind"] for each in watch.read(after)["events"]]


def test_a_position_is_read_again_with_the_same_answer(watch: Watch) -> None:
    watch.log("create", "a", "file")
    watch.log("write", "a", "file")
    first = watch.read(0)
    assert first == watch.read(0)
    assert first["position"] == 2
    assert watch.read(2) == {"events": [], "position": 2}
    assert [each["position"] for each in watch.read(1)["events"]] == [2]


def test_writes_in_a_row_are_one_until_they_are_read(watch: Watch) -> None:
    for _ in range(3):
        watch.log("write", "a")
    assert kinds(watch, 0) == ["write"]
    watch.log("write", "a")
    watch.log("write", "b")
    watch.log("write", "a")
    assert watch.position == 4
    watch.log("remove", "a")
    watch.log("remove", "a")
    assert kinds(watch, 4) == ["remove", "remove"]


def test_what_was_dropped_is_a_gap(watch: Watch) -> None:
    for number in range(MAX_EVENTS + 10):
        watch.log("create", str(number))
    found = watch.read(3)
    assert (found["events"][0]["kind"], found["events"][0]["position"]) == ("gap", 10)
    assert found["events"][1]["position"] == 11
    assert kinds(watch, 10)[0] == "create", "nothing is missing after it"


def test_long_paths_are_bounded_and_a_long_answer_comes_in_parts(watch: Watch) -> None:
    for number in range(MAX_EVENTS):
        watch.log("create", f"{number:04}" + "x" * 1000)
    position = read = 0
    while position < watch.position:
        found = watch.read(position)
        assert sum(len(each["path"]) for each in found["events"]) <= 129 * 1024
        position, read = found["position"], read + len(found["events"])
    assert read - 1 == MAX_BYTES // 1004


def test_a_position_that_is_yet_to_come(watch: Watch) -> None:
    for after in (1, -1):
        with pytest.raises(Refused):
            watch.read(after)
