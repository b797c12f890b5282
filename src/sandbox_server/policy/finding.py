"""What find would run on what it finds."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox_server.policy.fields import HOLE
from sandbox_server.policy.inner import Inner, Run, filled

_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_NO_FILTER = frozenset({
    "-depth", "-d", "-xdev", "-mount", "-noleaf", "-follow", "-print", "-print0", "-ls", "-delete",
    "-true", "-a", "-and", "-o", "-or", "-H", "-L", "-P", "-daystart", "-nowarn", "-warn",
})  # fmt: skip
_NO_FILTER_VALUED = frozenset({"-maxdepth", "-mindepth", "-printf", "-fprint", "-type", "-D"})


def unwrap_find(argv: list[str]) -> Iterator[Inner]:
    """What stands behind -exec and its kin. Where nothing is filtered out, each starting point is
    among what is found; -delete then is `rm -r` of them."""
    words = argv[1:]
    runs, others = _split_off_runs(words)
    starts = _starts(others)
    everything = _unfiltered(others)
    for command in runs:
        for place in [*(starts if everything else []), HOLE]:
            yield Run(filled(command, "{}", place))
    if everything and "-delete" in others:
        yield from (Run(["rm", "-r", start]) for start in starts)


def _split_off_runs(words: list[str]) -> tuple[list[list[str]], list[str]]:
    runs, others, index = [], [], 0
    while index < len(words):
        if words[index] not in _RUNS:
            others.append(words[index])
            index += 1
            continue
        end = next(
            (i for i in range(index + 1, len(words))
             if words[i] == ";" or (words[i] == "+" and words[i - 1] == "{}")),
            len(words),
        )  # fmt: skip
        if command := words[index + 1 : end]:
            runs.append(command)
        index = end + 1
    return runs, others


def _starts(words: list[str]) -> list[str]:
    starts = []
    for word in words:
        if word in ("-H", "-L", "-P"):
            continue
        if word[:1] in ("-", "(", "!", ")"):
            break
        starts.append(word)
    return starts[:4] or ["."]


def _unfiltered(words: list[str]) -> bool:
    skip = False
    for word in words:
        if skip or word in _NO_FILTER or word[:1] not in ("-", "!", "("):
            skip = False
        elif word in _NO_FILTER_VALUED:
            skip = True
        else:
            return False
    return True
