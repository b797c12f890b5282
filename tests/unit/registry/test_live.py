"""The registry of a running server: changes are taken up, and bad ones are not."""

import os
from pathlib import Path

import pytest
import structlog

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.registry.live import LOOK_S, LiveRegistry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_changes_are_taken_up_and_bad_ones_are_told(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    file, clock = tmp_path / "agents" / "mine.yaml", Clock()
    file.write_text("name: mine\ntools: [bash]\n")
    live = LiveRegistry(tmp_path, clock=clock)
    assert live.current().agents["mine"].tools == ("bash",)

    file.write_text("name: mine\ntools: [read_file]\n")
    assert live.current().agents["mine"].tools == ("bash",), "not looked at so soon"
    clock.now += LOOK_S
    assert live.current().agents["mine"].tools == ("read_file",)

    file.write_text("name: mine\ntools: [raed_file]\n")
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            clock.now += LOOK_S
            assert live.current().agents["mine"].tools == ("read_file",)
    assert f"{file}:2: tools: no tool" in live.problem
    assert [line["event"] for line in logs] == ["registry.bad"], "told once"

    file.unlink()
    clock.now += LOOK_S
    assert (live.problem, "mine" in live.current().agents) == ("", False)


def test_a_second_change_with_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    file, clock = tmp_path / "agents" / "mine.yaml", Clock()
    live = LiveRegistry(tmp_path, clock=clock)
    for tools in ("bash", "edit", "bash"):
        file.write_text(f"name: mine\ndescription: {tools}\n")
        os.utime(file, (1, 1))
        clock.now += LOOK_S
        assert live.current().agents["mine"].description == tools


def test_nothing_is_read_again_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents").mkdir()
    clock = Clock()
    live = LiveRegistry(tmp_path, clock=clock)
    monkeypatch.setattr("sandbox_server.registry.stamps.SETTLED_S", -1.0)
    clock.now += LOOK_S
    live.current()  # The folder is new: read once more.
    before = live.current()
    clock.now += LOOK_S
    assert live.current() is before


def test_a_folder_that_goes_away_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "mine.yaml").write_text("name: mine\n")
    clock = Clock()
    live = LiveRegistry(folder, clock=clock)
    folder.rename(tmp_path / "elsewhere")
    clock.now += LOOK_S
    assert "mine" in live.current().agents
    assert live.problem.endswith("registry:1: cannot be read: No such file or directory")


def test_a_server_does_not_start_with_a_bad_one(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "mine.yaml").write_text("name: other\n")
    with pytest.raises(InvalidRequest, match=r"mine\.yaml:1: name"):
        LiveRegistry(tmp_path)
