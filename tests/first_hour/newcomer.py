"""Somebody who has just installed the product: a venv with its wheel alone, and no checkout."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "newcomer"
BIN = BUILD / "venv" / "bin"
INSTALL_S = 900.0
PATIENCE_S = 60.0
READ_S = 300.0


@dataclass(frozen=True)
class Newcomer:
    """Programs of the installation, in a folder and a HOME of its own."""

    folder: Path
    env: dict[str, str]

    def __call__(
        self,
        *words: str,
        stdin: str = "",
        timeout_s: float = PATIENCE_S,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the installation, or of the machine."""
        return subprocess.run(
            words,
            input=stdin,
            env={**self.env, **(env or {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def reads(self, path: Path, *languages: str, env: Mapping[str, str] | None = None) -> int:
        """Follow a document block by block; how many there were."""
        reader = str(Path(__file__).with_name("reader.py"))
        done = self("python", reader, str(path), *languages, timeout_s=READ_S, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(done.stdout.splitlines()[-1].split()[0])


def newcomer_in(folder: Path) -> Newcomer:
    _install()
    packages = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    (folder / ".curlrc").write_text("silent\nshow-error\n")
    env = {
        "PATH": f"{BIN}{os.pathsep}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        **packages,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return Newcomer(folder, env)


def _install() -> None:
    """Make the venv where there is none, or the source has changed since."""
    BUILD.mkdir(parents=True, exist_ok=True)
    needs, has = (ROOT / "pyproject.toml", ROOT / "constraints.txt"), sorted(_source())
    with _alone(BUILD / "lock"):
        if not _is_fresh(BUILD / "venv" / "needs", needs):
            shutil.rmtree(BUILD / "venv", ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(BUILD / "venv"))
        if _is_fresh(BUILD / "venv" / "has", has):
            return
        shutil.rmtree(BUILD / "dist", ignore_errors=True)
        _pip("wheel", "--no-deps", "--wheel-dir", str(BUILD / "dist"), str(ROOT))
        (wheel,) = (BUILD / "dist").iterdir()
        _install_all(wheel)
        (BUILD / "venv" / "needs").write_text(_digest(needs))
        (BUILD / "venv" / "has").write_text(_digest(has))


def _install_all(wheel: Path) -> None:
    """Everything a user can have. uv takes seconds where pip takes a minute; but pip is the one
    that is set up for this machine."""
    words = ["install", "-c", str(ROOT / "constraints.txt"), f"{wheel}[all]"]
    fast = ["--python", str(BIN / "python"), "--reinstall-package", "agent-sandbox"]
    try:
        _run(sys.executable, "-m", "uv", "pip", *words, *fast)
    except AssertionError:
        _pip(*words)
        _pip("install", "--no-deps", "--force-reinstall", str(wheel))


def _source() -> Iterator[Path]:
    return (path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".yaml", ".sh"))


def _is_fresh(stamp: Path, files: tuple[Path, ...] | list[Path]) -> bool:
    return stamp.exists() and stamp.read_text() == _digest(files)


def _digest(files: tuple[Path, ...] | list[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def _pip(*words: str) -> None:
    _run(str(BIN / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Tests run in several processes: one of them installs, the others wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
