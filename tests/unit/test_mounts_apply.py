"""Folders that come back from a sandbox and try to do harm, applied to folders in use."""

import io
import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk.errors import FileTooLarge, InvalidPath
from sandbox_sdk.mounts import comparing, returned
from sandbox_sdk.mounts.asked import Mount
from sandbox_sdk.mounts.bases import Base
from sandbox_sdk.mounts.changes import MountChange
from sandbox_sdk.mounts.comparing import Comparison, Wanted
from sandbox_sdk.mounts.entries import Here
from sandbox_sdk.mounts.packing import Packing
from sandbox_sdk.mounts.returned import Returned
from sandbox_warden.tar import Tar

LINK, HARD, PIPE, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE


class Folder:
    """A folder of the caller, with what it was when it was copied."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "1" / "2" / "here"
        self.path.mkdir(parents=True)
        self._archive = tmp_path / "a.tar"
        self.base = Base(Mount(self.path, "/workspace/here"))

    def copy(self) -> None:
        packing = Packing(self.path, largest=1 << 20)
        list(packing.parts(self._archive))
        self.base.entries = packing.entries

    def put(self, **files: str) -> None:
        for name, content in files.items():
            (self.path / name).write_text(content)

    def back(self, *members: tarfile.TarInfo, act: bool = True, force: bool = False) -> Comparison:
        with tarfile.open(self._archive, "w", format=tarfile.PAX_FORMAT) as tar:
            for each in members:
                tar.addfile(each, io.BytesIO(b"x" * each.size) if each.isreg() else None)
        return self.compare(act=act, force=force)

    def back_from(self, box: Path, *, act: bool = True, force: bool = False) -> Comparison:
        """As the warden packs a folder of a box."""
        fd = os.open(box, os.O_RDONLY)
        try:
            self._archive.write_bytes(b"".join(data for data in Tar(fd) if data is not None))
        finally:
            os.close(fd)
        return self.compare(act=act, force=force)

    def compare(self, *, act: bool, force: bool) -> Comparison:
        with Returned(self._archive) as there, Here(self.path) as here:
            found = Comparison(self.base, there, here, Wanted(act=act, force=force))
            found.run()
        return found

    def contents(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.path)): path.read_text()
            for path in self.path.rglob("*")
            if path.is_file() and not path.is_symlink()
        }


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Folder]:
    """With files outside of it that must stay as they are."""
    (tmp_path / "outside").mkdir()
    for name in ("outside/x", "x"):
        (tmp_path / name).write_text("mine")
    yield Folder(tmp_path)
    assert (tmp_path / "outside" / "x").read_text() == (tmp_path / "x").read_text() == "mine"
    assert os.listdir(tmp_path / "outside") == ["x"]


def member(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def told(changes: list[MountChange]) -> dict[str, tuple[str, str | None]]:
    return {each.path: (each.change, each.conflict) for each in changes}


@pytest.mark.parametrize(
    "members",
    [
        [member("../out", size=1)],
        [member("a/../../out", size=1)],
        [member("/out", size=1)],
        [member("ab", size=1, pax_headers={"path": "../out"})],
        [member("ab", size=1, pax_headers={"path": "a\0b"})],
        [member("x" * 5000, size=1)],
        [member("l", type=LINK, linkname="d"), member("l/out", size=1)],
        [member("l/out", size=1), member("l", type=LINK, linkname="d")],
        [member("f", size=1), member("f/g", size=1)],
        [member("out", size=1), member("out", type=FOLDER)],
    ],
)
def test_an_archive_that_tries_to_get_out(here: Folder, members: list[tarfile.TarInfo]) -> None:
    here.put(kept="1")
    here.copy()
    with pytest.raises(InvalidPath):
        here.back(member("good", size=1), *members, force=True)
    assert here.contents() == {"kept": "1"}


@pytest.mark.parametrize("broken", [b"no archive", member("x", size=5000).tobuf() + b"half"])
def test_an_archive_that_is_cut_short_removes_nothing(here: Folder, broken: bytes) -> None:
    here.put(kept="1")
    here.copy()
    here._archive.write_bytes(broken)
    with pytest.raises(InvalidPath):
        here.compare(act=True, force=True)
    assert here.contents() == {"kept": "1"}


def test_links_that_lead_out_do_not_come(here: Folder, tmp_path: Path) -> None:
    here.put(file="1")
    (here.path / "mine").symlink_to(tmp_path / "outside")
    here.copy()
    done = here.back(
        member("file", type=LINK, linkname="../../../x"),
        member("mine", type=LINK, linkname=str(tmp_path / "outside")),
        member("root", type=LINK, linkname="/etc"),
        member("by", type=LINK, linkname="mine/x"),
        member("d", type=FOLDER),
        member("d/up", type=LINK, linkname="../.."),
        member("d/round", type=LINK, linkname="../d/../../out"),
        member("d/good", type=LINK, linkname="../file"),
        force=True,
    )
    assert told(done.changes) == {"d/good": ("added", None)}
    assert sorted(line.partition(":")[0] for line in done.left_out) == [
        "by", "d/round", "d/up", "file", "root",
    ]  # fmt: skip
    assert here.contents() == {"file": "1"}
    assert os.readlink(here.path / "d" / "good") == "../file"


@pytest.mark.parametrize("force", [False, True])
def test_a_link_here_is_never_written_through(here: Folder, tmp_path: Path, force: bool) -> None:
    (here.path / "d").mkdir()
    (here.path / "d" / "x").write_text("1")
    here.put(f="1", x="1")
    here.copy()
    (here.path / "d" / "x").unlink()
    (here.path / "d").rmdir()
    (here.path / "d").symlink_to(tmp_path / "outside")
    (here.path / "f").unlink()
    (here.path / "f").symlink_to(tmp_path / "x")
    done = here.back(
        member("d", type=FOLDER), member("d/x", size=3), member("d/new", size=3),
        member("f", size=3), member("x", size=1), force=force,
    )  # fmt: skip
    found = told(done.changes)
    assert found["d/x"] == ("changed", "d is not a folder here")
    assert found["d/new"] == ("added", "d is not a folder here")
    assert (found["f"][1] is None) == force
    assert (here.path / "f").is_symlink() != force
    assert here.contents()["x"] == "x"


def test_what_is_removed_there_is_not_removed_through_a_link(here: Folder, tmp_path: Path) -> None:
    (here.path / "d").mkdir()
    (here.path / "d" / "x").write_text("mine")
    here.copy()
    (here.path / "d" / "x").unlink()
    (here.path / "d").rmdir()
    (here.path / "d").symlink_to(tmp_path / "outside")
    done = here.back(member("other", size=1), force=True)
    assert told(done.changes)["d/x"] == ("removed", "d is not a folder here")


def test_modes(here: Folder) -> None:
    """Whether it is executable comes back; nothing that lends rights does, or takes them."""
    here.put(mine="1", shared="1")
    (here.path / "shared").chmod(0o660)
    here.copy()
    before = os.umask(0o022)
    try:
        here.back(
            member("mine", size=2, mode=0o7777),
            member("shared", size=2, mode=0o644),
            member("none", size=1, mode=0),
            member("d", type=FOLDER, mode=0o7777),
        )
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in here.path.iterdir()}
    assert modes == {"mine": 0o755, "shared": 0o660, "none": 0o644, "d": 0o755}


def test_other_kinds_are_left_out_and_nothing_is_taken_for_removed(here: Folder) -> None:
    here.put(pipe="1", hard="1", kept="1")
    here.copy()
    done = here.back(
        member("pipe", type=PIPE),
        member("hard", type=HARD, linkname="kept"),
        member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("kept", size=1),
        member("y" * 256, size=1),
    )
    assert told(done.changes) == {"kept": ("changed", None)}
    assert len(done.left_out) == 4
    assert here.contents() == {"pipe": "1", "hard": "1", "kept": "x"}


def test_what_a_box_could_not_read_is_not_taken_for_removed(here: Folder, tmp_path: Path) -> None:
    """A file, and a folder with everything in it; told at the end of the archive of the box."""
    box = tmp_path / "box"
    for folder in (here.path, box):
        (folder / "d").mkdir(parents=True)
        for name in ("a: b", "d/in", "gone", "other"):
            (folder / name).write_text("1")
    here.copy()
    (box / "gone").unlink()
    (box / "a: b").unlink()
    os.mkfifo(box / "a: b")
    for name in ("in", ""):
        (box / "d" / name).rename(box / "elsewhere") if name else (box / "d").rmdir()
    os.mkfifo(box / "d")
    done = here.back_from(box)
    assert told(done.changes) == {"gone": ("removed", None), "elsewhere": ("added", None)}
    assert here.contents().keys() == {"a: b", "d/in", "other", "elsewhere"}
    assert [line.split(": it is")[0] for line in done.left_out] == ["a: b", "d"]


def test_more_than_is_told_removes_nothing(here: Folder, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    here.put(gone="1")
    here.copy()
    for number in range(300):
        os.mkfifo(box / str(number))
    done = here.back_from(box)
    assert done.changes == []
    assert here.contents() == {"gone": "1"}


def test_a_repository_does_not_come_back(here: Folder) -> None:
    (here.path / ".git").mkdir()
    (here.path / ".git" / "config").write_text("1")
    here.copy()
    done = here.back(
        member(".git", type=FOLDER), member(".git/config", size=9),
        member(".git/hooks/post-checkout", size=9, mode=0o755), member("sub/.git", size=9),
        member(".GIT/config", size=9), member("sub/file", size=1), force=True,
    )  # fmt: skip
    assert told(done.changes) == {"sub/file": ("added", None)}
    assert here.contents() == {".git/config": "1", "sub/file": "x"}
    assert "it stays in the sandbox" in done.left_out[0]


def test_files_and_folders_in_place_of_each_other(here: Folder) -> None:
    (here.path / "d").mkdir()
    (here.path / "d" / "in").write_text("1")
    here.put(f="1")
    here.copy()
    members = [member("d", size=1), member("f", type=FOLDER), member("f/in", size=1)]
    planned = here.back(*members, act=False)
    assert here.contents() == {"d/in": "1", "f": "1"}
    done = here.back(*members)
    assert told(done.changes) == told(planned.changes)
    assert here.contents() == {"d": "x", "f/in": "x"}
    assert here.back(*members).changes == []


def test_a_folder_with_files_of_the_callers_stays(here: Folder) -> None:
    (here.path / "d").mkdir()
    (here.path / "d" / "in").write_text("1")
    here.copy()
    (here.path / "d" / "mine").write_text("1")
    done = here.back(member("other", size=1), force=True)
    assert told(done.changes) == {"d/in": ("removed", None), "other": ("added", None)}
    assert here.contents() == {"d/mine": "1", "other": "x"}
    done = here.back(member("other", size=1), member("d", size=1), force=True)
    assert told(done.changes)["d"] == ("changed", "a folder with other files here")
    assert here.contents()["d/mine"] == "1"


def test_conflicts_and_force(here: Folder) -> None:
    here.put(both="1", theirs="1", mine="1")
    here.copy()
    here.put(both="2", mine="2", new="mine")
    members = [member("both", size=3), member("theirs", size=3), member("new", size=1)]
    done = here.back(*members)
    assert {path: bool(c) for path, (_, c) in told(done.changes).items()} == {
        "both": True, "theirs": False, "mine": True, "new": True,
    }  # fmt: skip
    assert here.contents() == {"both": "2", "theirs": "xxx", "mine": "2", "new": "mine"}
    here.back(*members, force=True)
    assert here.contents() == {"both": "xxx", "theirs": "xxx", "new": "x"}


def test_what_was_applied_is_the_base_of_what_comes_next(here: Folder) -> None:
    here.put(f="1")
    here.copy()
    here.back(member("f", size=1), member("g", size=1))
    assert here.back(member("f", size=1), member("g", size=1)).changes == []
    assert told(here.back(member("f", size=2)).changes) == {
        "f": ("changed", None), "g": ("removed", None),
    }  # fmt: skip
    assert here.contents() == {"f": "xx"}


def test_no_file_is_ever_half_there(here: Folder) -> None:
    """Somebody who reads it all the time sees the one or the other."""
    here.put(f="1" * 2_000_000)
    here.copy()
    seen, stop = set(), threading.Event()

    def read() -> None:
        while not stop.is_set():
            data = (here.path / "f").read_bytes()
            seen.add((len(data), data[:1], data[-1:]))

    reader = threading.Thread(target=read)
    reader.start()
    for size in (3_000_000, 1_000_000, 3_000_000):
        here.back(member("f", size=size))
    stop.set()
    reader.join()
    assert seen <= {(2_000_000, b"1", b"1"), (3_000_000, b"x", b"x"), (1_000_000, b"x", b"x")}
    assert os.listdir(here.path) == ["f"]


def test_a_change_between_the_look_and_the_write(
    here: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.put(f="1")
    here.copy()

    def typed_meanwhile(*_: object) -> str:
        here.put(f="typed meanwhile")
        return ""

    monkeypatch.setattr(Comparison, "_text", typed_meanwhile)
    done = here.back(member("f", size=5), force=True)
    assert told(done.changes) == {"f": ("changed", "changed here while it was applied")}
    assert here.contents() == {"f": "typed meanwhile"}


def test_a_full_disk_leaves_the_file_as_it_was(
    here: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.put(f="1", g="1")
    here.copy()

    def full(_self: Returned, _path: str, fd: int) -> None:
        os.write(fd, b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Returned, "copy", full)
    done = here.back(member("f", size=5), member("g", size=1))
    assert told(done.changes)["f"] == ("changed", "No space left on device")
    assert here.contents() == {"f": "1", "g": "1"}


def test_what_is_packed(here: Folder, tmp_path: Path) -> None:
    """In several archives, with links as links, and what cannot be copied told."""
    (here.path / "d").mkdir()
    (here.path / "d" / "ro").mkdir(mode=0o555)
    for number in range(5):
        (here.path / "d" / str(number)).write_bytes(os.urandom(300_000))
    (here.path / "d" / "3").chmod(0o6751)
    (here.path / "large").write_bytes(bytes(1 << 20))
    (here.path / "out").symlink_to(tmp_path / "outside")
    (here.path / b"not-\xff-utf8".decode(errors="surrogateescape")).touch()
    os.mkfifo(here.path / "pipe")
    packing = Packing(here.path, largest=1 << 20)
    assert packing.size() == 5 * 300_000 + (1 << 20)
    box, parts = tmp_path / "box", 0
    for part in packing.parts(tmp_path / "part.tar"):
        parts += 1
        assert part.stat().st_size <= 1 << 20
        with tarfile.open(part) as tar:
            assert all(each.mode <= 0o777 for each in tar.getmembers())
            tar.extractall(box, filter="tar")
    assert parts == 3
    assert [line.partition(":")[0] for line in packing.left_out] == ["large", "pipe"]
    assert os.readlink(box / "out") == str(tmp_path / "outside")
    assert (box / "d" / "3").stat().st_mtime == pytest.approx(
        (here.path / "d" / "3").stat().st_mtime, abs=1e-5
    )
    assert stat.S_IMODE((box / "d" / "3").stat().st_mode) == 0o751
    here.base.entries = packing.entries
    assert here.back_from(box).changes == []


def test_an_archive_with_too_many_names(here: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    here.put(kept="1")
    here.copy()
    monkeypatch.setattr(returned, "_MAX_ENTRIES", 10)
    with pytest.raises(FileTooLarge):
        here.back(*(member(str(number), size=1) for number in range(20)))
    assert here.contents() == {"kept": "1"}


def test_a_patch_has_an_end(here: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after it is named, and applied all the same."""
    monkeypatch.setattr(comparing, "MAX_PATCH", 100)
    done = here.back(*(member(str(number), size=99) for number in range(5)))
    assert len([each for each in done.changes if each.text.startswith("diff")]) == 1
    assert len([each for each in done.changes if "too long already" in each.text]) == 4
    assert len(here.contents()) == 5
