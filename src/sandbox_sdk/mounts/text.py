"""Changes as text: unified diffs that `git apply` and `patch` take, or a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from sandbox_sdk.mounts.entries import Entry

MAX_SHOWN = 1 << 20
"""Bytes of a file that is compared line by line."""
_MOST_LINES = 1000
"""Of what differs on each side: comparing takes the square of it."""
_CONTEXT = 3
_NO_NEWLINE = "\\ No newline at end of file\n"

Opcode = tuple[str, int, int, int, int]


def as_text(data: bytes) -> str | None:
    """None for what is not text, or too much of it."""
    if len(data) > MAX_SHOWN or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def patch(
    path: str, before: Entry | None, after: Entry | None, old: bytes | None, new: bytes | None
) -> str:
    """What makes `before` into `after`, in the form of git. old, new: what is in them: of a file
    its content, of a link its target; None where there is neither."""
    if "directory" in (before and before.kind, after and after.kind):
        return f"# {_name(path)}: {_called(before)} becomes {_called(after)}\n"
    name = _name(path)
    head = f"diff --git a/{name} b/{name}\n" + _modes(before, after)
    texts = [None if data is None else as_text(data) for data in (old, new)]
    if (old is not None and texts[0] is None) or (new is not None and texts[1] is None):
        old_name, new_name = _side("a", before, name), _side("b", after, name)
        return f"{head}Binary files {old_name} and {new_name} differ\n"
    return head + unified(path, *texts)


def _side(letter: str, entry: Entry | None, name: str) -> str:
    return "/dev/null" if entry is None else f"{letter}/{name}"


def _called(entry: Entry | None) -> str:
    kinds = {"directory": "a folder", "file": "a file", "symlink": "a link"}
    return "nothing" if entry is None else kinds.get(entry.kind, "something else")


def _modes(before: Entry | None, after: Entry | None) -> str:
    if before is None:
        return f"new file mode {_mode(after)}\n"
    if after is None:
        return f"deleted file mode {_mode(before)}\n"
    if _mode(before) == _mode(after):
        return ""
    return f"old mode {_mode(before)}\nnew mode {_mode(after)}\n"


def _mode(entry: Entry | None) -> str:
    if entry is not None and entry.kind == "symlink":
        return "120000"
    return "100755" if entry is not None and entry.executable else "100644"


def unified(path: str, before: str | None, after: str | None) -> str:
    """A diff of two texts; None where there is no file."""
    name = _name(path)
    old = "/dev/null" if before is None else f"a/{name}"
    new = "/dev/null" if after is None else f"b/{name}"
    lines = list(_hunks(_lines(before or ""), _lines(after or "")))
    return "".join([f"--- {old}\n+++ {new}\n", *lines]) if lines else ""


def _name(path: str) -> str:
    """On one line; a file name may have line breaks in it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)


def _lines(text: str) -> list[str]:
    found = text.split("\n")
    last = found.pop()
    return [f"{line}\n" for line in found] + ([last] if last else [])


def _hunks(a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    for group in _Matcher(a, b).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for tag, start_a, end_a, start_b, end_b in group:
            if tag == "equal":
                yield from (_line(" ", each) for each in a[start_a:end_a])
                continue
            yield from (_line("-", each) for each in a[start_a:end_a])
            yield from (_line("+", each) for each in b[start_b:end_b])


def _line(sign: str, text: str) -> str:
    return f"{sign}{text}" if text.endswith("\n") else f"{sign}{text}\n{_NO_NEWLINE}"


def _range(start: int, end: int) -> str:
    """Counted from 1; an empty range is named by the line before it."""
    return f"{start + 1 if end > start else start},{end - start}"


class _Matcher(SequenceMatcher[str]):
    """Compares only what is between a common beginning and a common end, and if that is long, not
    at all: so a sandbox cannot make a comparison take forever."""

    def __init__(self, a: Sequence[str], b: Sequence[str]) -> None:
        super().__init__(None, "", "")
        self._a, self._b = a, b

    def get_opcodes(self) -> list[Opcode]:  # type: ignore[override]
        a, b = self._a, self._b
        shorter = min(len(a), len(b))
        start = next((n for n in range(shorter) if a[n] != b[n]), shorter)
        left = shorter - start
        end = next((n for n in range(left) if a[-1 - n] != b[-1 - n]), left)
        end_a, end_b = len(a) - end, len(b) - end
        head: list[Opcode] = [("equal", 0, start, 0, start)] if start else []
        tail: list[Opcode] = [("equal", end_a, len(a), end_b, len(b))] if end else []
        return [*head, *_middle(a[start:end_a], b[start:end_b], start), *tail]


def _middle(a: Sequence[str], b: Sequence[str], offset: int) -> list[Opcode]:
    if not a and not b:
        return []
    if max(len(a), len(b)) > _MOST_LINES:
        return [("replace", offset, offset + len(a), offset, offset + len(b))]
    found = SequenceMatcher(None, a, b).get_opcodes()
    return [(tag, i + offset, j + offset, k + offset, m + offset) for tag, i, j, k, m in found]
