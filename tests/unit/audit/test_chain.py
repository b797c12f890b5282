"""Every line of an audit log that is removed, changed, moved or inserted is found and named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox_server.audit.chain import canonical, digest_of
from sandbox_server.audit.files import ChainFiles, head_path, rotated_files
from sandbox_server.audit.verifying import Problem, Report, verify_files, verify_log

LINES = 12
Lines = list[bytes]


def written(path: Path, count: int = LINES, *, size: int = 1 << 20, keep: int = 100) -> ChainFiles:
    """The first line of a chain says that it begins."""
    files = ChainFiles(path, size=size, count=keep)
    for number in range(count - 1):
        files.append([{"kind": "test", "number": number, "text": "é\n\ud800"}])
        files.settle()
    return files


def problems(report: Report) -> list[tuple[int, str]]:
    return [(each.line, each.what) for each in report.problems]


def test_what_nobody_touched_is_whole(tmp_path: Path) -> None:
    written(tmp_path / "a.log").close()
    report = verify_log(tmp_path / "a.log")
    assert (report.problems, report.notes, report.lines) == ([], [], LINES)


def _change(field: str) -> Callable[[Lines, int], None]:
    def change(lines: Lines, at: int) -> None:
        fields = json.loads(lines[at])
        old = fields[field]
        fields[field] = old + 1 if isinstance(old, int) else f"x{old[1:]}"
        lines[at] = canonical(fields)

    return change


def _remove(lines: Lines, at: int) -> None:
    del lines[at]


def _swap(lines: Lines, at: int) -> None:
    other = at + 1 if at + 1 < len(lines) else at - 1
    lines[at], lines[other] = lines[other], lines[at]


def _repeat(lines: Lines, at: int) -> None:
    lines.insert(at, lines[at])


def _insert_text(lines: Lines, at: int) -> None:
    lines.insert(at, b'{"kind":"test"}')


def _space(lines: Lines, at: int) -> None:
    lines[at] = lines[at].replace(b",", b", ", 1)


def _cut(lines: Lines, at: int) -> None:
    lines[at] = lines[at][:-5]


TAMPERING = {
    "removed": _remove,
    "swapped": _swap,
    "repeated": _repeat,
    "inserted": _insert_text,
    "spaced": _space,
    "cut": _cut,
    **{f"changed {field}": _change(field) for field in ("kind", "seq", "prev", "hash", "chain")},
}


@pytest.mark.parametrize("name", TAMPERING)
@pytest.mark.parametrize("at", range(LINES))
@pytest.mark.parametrize("size", [1 << 20, 1000], ids=["one file", "rotated"])
def test_tampering_is_found_and_named(tmp_path: Path, name: str, at: int, size: int) -> None:
    path = tmp_path / "a.log"
    written(path, size=size).close()
    files = [*rotated_files(path), path]
    assert (len(files) > 2) == (size == 1000)
    counts = [len(each.read_bytes().splitlines()) for each in files]
    file, line = next((f, at - sum(counts[:i])) for i, f in enumerate(files)
                      if at < sum(counts[: i + 1]))  # fmt: skip
    lines = file.read_bytes().splitlines()
    if name == "swapped" and len(lines) == 1:
        pytest.skip("a file with one line has nothing to swap")
    TAMPERING[name](lines, line)
    file.write_bytes(b"".join(each + b"\n" for each in lines))
    report = verify_log(path)
    assert report.problems
    told = {(p.file, p.line) for p in report.problems}
    where = min(
        line, line if name != "swapped" or line + 1 < counts[files.index(file)] else line - 1
    )
    near = {(str(file), n) for n in (where, where + 1, where + 2)}
    following = files[files.index(file) + 1 :]
    near |= {(str(each), 1) for each in following[:1]} | {(str(path), 0), (str(path), len(lines))}
    assert told & near


def test_a_replaced_line_with_a_hash_of_its_own_is_found(tmp_path: Path) -> None:
    written(tmp_path / "a.log").close()
    lines = (tmp_path / "a.log").read_bytes().splitlines()
    for at in range(LINES):
        fields = json.loads(lines[at])
        fields["kind"] = "forged"
        fields["hash"] = digest_of(fields)
        changed = [*lines[:at], canonical(fields), *lines[at + 1 :]]
        (tmp_path / "a.log").write_bytes(b"\n".join([*changed, b""]))
        assert verify_log(tmp_path / "a.log").problems[0].line in (at + 1, at + 2)


def test_removed_newest_lines_are_found_by_the_head(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    written(path).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))
    missing = f"its last lines are missing: {LINES - 2}-{LINES} of the log, by its head"
    assert problems(verify_log(path)) == [(LINES - 3, missing)]
    written(path, 2).close()  # A server that starts there does not cover it up.
    assert problems(verify_log(path)) == [
        (LINES - 2, f"lines {LINES - 2}-{LINES} of the log before this one: removed")
    ]
    told = json.loads(path.read_bytes().splitlines()[LINES - 3])
    assert (told["kind"], told["after"], told["lines"]) == ("tail_missing", LINES - 3, 3)


def test_without_the_head_it_is_told_what_cannot_be_known(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    written(path).close()
    head_path(path).unlink()
    assert "its head is missing" in verify_log(path).problems[0].what
    report = verify_files([path])
    assert not report.problems
    assert "no head was found" in report.notes[0].what


def test_rotation_keeps_the_chain_and_so_many_files(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    written(path, 40, size=1000, keep=3).close()
    files = rotated_files(path)
    assert len(files) == 3
    assert verify_log(path).problems == []
    assert verify_files([path, *reversed(files)]).problems == []
    files[0].unlink()
    assert "lines before" in verify_log(path).problems[0].what
    assert "the oldest that is kept" in verify_log(path).problems[0].what


def test_a_file_that_somebody_else_has_rotated(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    files = written(path, 3)
    path.rename(tmp_path / "moved")
    files.append([{"kind": "test"}])
    files.settle()
    files.close()
    assert verify_files([path, tmp_path / "moved"]).problems == []


def test_a_log_of_a_version_without_hashes_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text('{"at": "2026-01-01", "command": "ls"}\n')
    written(path, 3).close()
    assert (tmp_path / "a.log.unchained").read_text().startswith('{"at": "2026')
    assert verify_log(path).problems == []


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_an_unfinished_last_line(tmp_path: Path, cut: int) -> None:
    """As a server leaves it that is killed while it writes: the head is of the line before."""
    path = tmp_path / "a.log"
    files = written(path)
    head = head_path(path).read_bytes()
    files.append([{"kind": "test"}])
    files.close()
    head_path(path).write_bytes(head)
    path.write_bytes(path.read_bytes()[:-cut])
    report = verify_log(path)
    assert not report.problems
    if cut > 1:
        assert "unfinished" in report.notes[0].what
    written(path, 3).close()
    report = verify_log(path)
    assert not report.problems
    kinds = [
        json.loads(line)["kind"] for line in path.read_bytes().splitlines() if line[-1:] == b"}"
    ]
    assert ("torn" in kinds) == (cut > 1)
    if cut > 1:  # One that nobody has told of is no torn line.
        lines = path.read_bytes().splitlines()
        lines[LINES] += b"x"
        path.write_bytes(b"\n".join([*lines, b""]))
        assert verify_log(path).problems[0] == Problem(
            str(path), LINES + 1, "not a line of the log: changed or inserted"
        )
