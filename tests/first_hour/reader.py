"""Does what a document says: runs its examples in their order, in the current folder.

    ```python     all of a document in one namespace; an exception is a failure
    ```bash       each a script of its own; variables that are exported carry over
    ```console    lines after `$ ` are run, and `> ` goes on with one; the lines below are what it
                  prints, where ... stands for anything

    reader.py DOCUMENT [LANGUAGE…]

The usual address of a server, port 8000 of this machine, becomes the one in READER_URL. A block
after the comment <!-- not run: why --> is left alone; any other language is no example. Prints how
many examples there were. It is run by a Python that has nothing but the product.
"""

import doctest
import os
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LANGUAGES = ("python", "bash", "console")
PATIENCE_S = 60.0

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SKIPPED = re.compile(r"<!-- not run: .+ -->\s*\Z")
_SERVER = re.compile(r"http://(localhost|127\.0\.0\.1):8000")


@dataclass(frozen=True)
class Block:
    path: Path
    line: int
    """Of its first line of code."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def blocks(path: Path, *, languages: tuple[str, ...] = LANGUAGES) -> list[Block]:
    """The examples of a document."""
    text = path.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        if fence[1] in languages and not _SKIPPED.search(text, 0, fence.start()):
            line = text.count("\n", 0, fence.start(2)) + 1
            found.append(Block(path, line, fence[1], fence[2]))
    return found


@dataclass
class Reader:
    """Somebody who tries out what the document says, from top to bottom."""

    url: str
    names: dict[str, Any] = field(default_factory=dict)

    def python(self, block: Block) -> None:
        # Behind empty lines, so that a traceback has the line numbers of the document.
        source = "\n" * (block.line - 1) + self._here(block.text)
        try:
            exec(compile(source, str(block.path), "exec"), self.names)
        except Exception as exc:
            raise AssertionError(f"{block}: {exc!r}") from exc

    def bash(self, block: Block) -> None:
        code, output = self._bash(self._here(block.text))
        assert code == 0, f"{block}: exit {code}\n{output}"

    def console(self, block: Block) -> None:
        for command, told in _dialogue(block.text):
            code, output = self._bash(self._here(command))
            same = doctest.OutputChecker().check_output(
                _trimmed(told), _trimmed(output), doctest.ELLIPSIS
            )
            assert (code, same) == (0, True), (
                f"{block}: {command}exit {code}, expected:\n{told}\ngot:\n{output}"
            )

    def _bash(self, script: str) -> tuple[int, str]:
        kept = Path(".env").absolute()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"trap 'env -0 > {kept}' EXIT\n{script}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        pairs = kept.read_text().split("\0")
        os.environ.update(dict(pair.split("=", 1) for pair in pairs if "=" in pair))
        kept.unlink()
        return done.returncode, done.stdout

    def _here(self, text: str) -> str:
        return _SERVER.sub(self.url, text)


def _trimmed(text: str) -> str:
    """Without what nobody sees."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def _dialogue(text: str) -> list[tuple[str, str]]:
    """Commands, each with the output below it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (found[-1][0] + line[2:], "")
        else:
            command, told = found[-1]
            found[-1] = (command, told + line)
    return found


def main() -> None:
    path, *languages = sys.argv[1:]
    reader = Reader(os.environ.get("READER_URL", ""))
    found = blocks(Path(path), languages=tuple(languages) or LANGUAGES)
    for block in found:
        try:
            getattr(reader, block.language)(block)
        except AssertionError:
            traceback.print_exc()
            sys.exit(1)
    print(f"{len(found)} examples")


if __name__ == "__main__":
    main()
