"""The patches of this folder. Their first lines say what they break and where it should be found:

promise: what no longer holds, as a reader of the documents would say it
tests: the files or folders concerned
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Patch:
    name: str
    promise: str
    tests: list[str]
    file: Path

    def apply(self, tree: Path, *, try_only: bool = False) -> None:
        """Raises RuntimeError if the code is no longer what it was written for."""
        command = ["git", "apply", *(["--check"] if try_only else []), str(self.file)]
        # In a folder of a repository that is not its top, git would leave all out and be content.
        env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
        done = subprocess.run(
            command, cwd=tree, capture_output=True, text=True, check=False, env=env
        )
        if done.returncode != 0:
            raise RuntimeError(f"{self.name} does not apply: {done.stderr.strip()}")


def patches() -> Iterator[Patch]:
    for file in sorted(FOLDER.glob("*.patch")):
        head = dict(
            line.split(": ", 1)
            for line in file.read_text().partition("\ndiff --git")[0].splitlines()
        )
        yield Patch(file.stem, head["promise"], head["tests"].split(), file)
