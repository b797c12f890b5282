"""The parts of the bridge that need no kernel: what is kept of a cell, and which kernel runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from sandbox_warden import frames
from sandbox_warden.errors import Refused
from sandbox_warden.kernel_output import MOST_RESULTS, CellOutput
from sandbox_warden.kernel_process import Wire
from sandbox_warden.kernel_specs import find_specs, spec_for


class Sent:
    def __init__(self, *, text_limit: int = 1000, result_limit: int = 1000) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.output = CellOutput(
            lambda kind, data: self.frames.append((kind, data)),
            text_limit=text_limit,
            result_limit=result_limit,
        )

    def text(self) -> str:
        return b"".join(data for kind, data in self.frames if kind != frames.RESULT).decode()

    def records(self) -> list[dict[str, Any]]:
        lines = b"".join(data for kind, data in self.frames if kind == frames.RESULT)
        return [json.loads(line) for line in lines.splitlines()]


def test_the_middle_of_long_text_is_left_out() -> None:
    sent = Sent(text_limit=100)
    for number in range(1000):
        sent.output.text(frames.STDOUT, f"{number:04}\n")
    assert len(sent.text()) == 50, "the first half goes out at once"
    sent.output.finish()
    assert sent.text() == (
        "".join(f"{n:04}\n" for n in range(10))
        + "\n[4900 bytes of output left out]\n"
        + "".join(f"{n:04}\n" for n in range(990, 1000))
    )
    assert (sent.output.size, sent.output.left_out) == (5000, 4900)


def test_results_are_bounded_by_bytes_and_by_number() -> None:
    sent = Sent(result_limit=500)
    sent.output.result({"data": {"text/plain": "small", "image/png": "x" * 5000}}, main=True)
    assert set(sent.records()[0]["data"]) == {"text/plain"}
    assert "left out: image/png of 5002 bytes" in sent.records()[0]["data"]["text/plain"]
    for _ in range(MOST_RESULTS + 5):
        sent.output.result({"data": {}}, main=False)
    sent.output.finish()
    assert len(sent.records()) == MOST_RESULTS + 1
    assert "[6 more results left out" in sent.records()[-1]["data"]["text/plain"]


def test_a_traceback_has_no_colours_and_an_end() -> None:
    sent = Sent()
    red = "\x1b[0;31mred\x1b[0m"
    sent.output.error({"ename": "E", "evalue": "v", "traceback": [red, *["x" * 1000] * 100]})
    (record,) = sent.records()
    assert record["traceback"][0] == "red"
    assert record["traceback"][-1] == "[the rest is left out]"
    assert len(json.dumps(record)) < 70_000


def test_what_is_not_signed_is_no_message() -> None:
    wire, other = Wire(b"key"), Wire(b"another")
    ident, parts = wire.request("execute_request", {"code": "1"})
    message = wire.message([b"topic", *parts])
    assert message is not None
    assert (message.kind, message.content) == ("execute_request", {"code": "1"})
    assert ident
    for odd in ([], [b"x"], parts[:3], other.request("status", {})[1], [*parts[:2], *[b"{"] * 4]):
        assert wire.message(odd) is None


def test_kernels_by_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    for name, language in (("tslab", "typescript"), ("ir", "R"), ("broken", "")):
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True)
        about = json.dumps({"argv": [name, "{connection_file}"], "language": language})
        (folder / "kernel.json").write_text("{" if name == "broken" else about)
    assert spec_for("javascript", {}).name == "tslab"
    assert spec_for("r", {}).name == "ir"
    assert spec_for("python", {"python": "tslab"}).name == "tslab"
    assert "broken" not in find_specs()
    with pytest.raises(Refused, match=r"no Jupyter kernel for julia; it has: .*typescript \(tslab"):
        spec_for("julia", {})
    with pytest.raises(Refused, match="no Jupyter kernel named nothing"):
        spec_for("r", {"r": "nothing"})
