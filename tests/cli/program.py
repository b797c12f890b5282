"""Programs as a person or a script runs them: with pipes, or in a terminal."""

import json
import os
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Any

from tests import preloaded

SANDBOX = str(Path(sys.executable).with_name("sandbox"))
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Program:
    env: dict[str, str]
    folder: Path

    def __call__(
        self, *args: str, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **(env or {})}
        if preloaded.is_possible(env):
            return preloaded.run_command(
                list(args), env, self.folder, stdin=stdin, timeout_s=PATIENCE_S
            )
        return subprocess.run(
            [SANDBOX, *args],
            input=stdin,
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def output(self, *args: str, stdin: str = "") -> str:
        """The stdout of a call that has to succeed."""
        done = self(*args, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.output(*args, "--json"))

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SANDBOX, *args],
            env=self.env,
            cwd=self.folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def terminal(
        self, *args: str, size: tuple[int, int] = (24, 200), term: str = "dumb"
    ) -> "Terminal":
        return Terminal([SANDBOX, *args], {**self.env, "TERM": term}, self.folder, size=size)


class Terminal:
    """A program with a terminal of its own. Use as a context manager."""

    def __init__(
        self, command: list[str], env: dict[str, str], folder: Path, *, size: tuple[int, int]
    ) -> None:
        self._master, self._slave = os.openpty()
        self.resize(rows=size[0], cols=size[1])
        self.settings = termios.tcgetattr(self._slave)
        self.shown = ""
        self._process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
        os.close(self._slave)

    def type(self, text: str) -> None:
        """Once the program waits for something: Python's readline misses a Ctrl-C that comes after
        its prompt and before it waits, until the next key."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.exists() and stat.read_text().rpartition(") ")[2][0] == "R":
            time.sleep(0.005)
        os.write(self._master, text.encode())

    def resize(self, *, rows: int, cols: int) -> None:
        ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def expect(self, text: str) -> None:
        """Wait until the text is shown, and forget everything up to it."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown, but {self.shown!r}"
            if select.select([self._master], [], [], left)[0]:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def wait(self) -> int:
        """The exit code. The terminal has to be as it was before."""
        code = self._process.wait(PATIENCE_S)
        assert termios.tcgetattr(self._slave) == self.settings
        return code
