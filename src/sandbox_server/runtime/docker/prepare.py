"""Runs once inside an image, as root, and turns it into an image for boxes.

It is copied into the image and has to parse on every Python 3, if only to report that the version
is too old. Its exit code tells image.py what is wrong with the image.
"""

import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import zipfile

FOLDER = "/usr/lib/sandbox"
UID = "1000"
USUAL_HOME = "/home/sandboxuser"
HOSTS = "hosts"
SAVE_ARTIFACT = "save_artifact"
NO_BASH, OLD_PYTHON = 70, 71
UNCHECKED_HASH = 1
"""Flag in a .pyc header: do not check the source."""


def main() -> int:
    if sys.version_info < (3, 8):  # noqa: UP036
        return OLD_PYTHON
    if shutil.which("bash") is None:
        return NO_BASH
    user, home = sys.argv[1:3]
    replace_user("/etc/passwd", ":".join([user, "x", UID, UID, "", home, "/bin/bash"]))
    replace_user("/etc/group", ":".join([user, "x", UID, ""]))
    for folder in ("/workspace", home):
        give(folder)
    if home != USUAL_HOME:
        link_home(home)
    with open(os.path.join(FOLDER, HOSTS), "w", encoding="ascii") as file:
        file.write("127.0.0.1 localhost sandbox\n::1 localhost sandbox\n")
    add_command(SAVE_ARTIFACT)
    compile_zipapp(os.path.join(FOLDER, "warden.pyz"))
    if not os.path.exists(os.path.join(FOLDER, "python3")):  # The image's own.
        lay_out_python()
    hold = shutil.which("cat", path="/usr/bin:/bin")
    if hold is not None:
        copy_unreadable(os.path.realpath(hold), os.path.join(FOLDER, "cat"))
    os.unlink(os.path.join(FOLDER, "prepare.py"))
    return 0


def replace_user(path: str, line: str) -> None:
    """Put line into an account file, replacing entries with the same name or number."""
    name, _, number = line.split(":")[:3]
    kept = []
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for old in file.read().splitlines():
                fields = old.split(":")
                if fields[0] != name and fields[2:3] != [number]:
                    kept.append(old)
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join([*kept, line, ""]))


def give(folder: str) -> None:
    """Create a folder if needed and make the user own it and everything in it."""
    os.makedirs(folder, exist_ok=True)
    os.chown(folder, int(UID), int(UID))
    os.chmod(folder, 0o755)
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            os.chown(os.path.join(parent, name), int(UID), int(UID), follow_symlinks=False)


def link_home(home: str) -> None:
    """Have a link where the home of other boxes is."""
    if os.path.isdir(USUAL_HOME) and not os.path.islink(USUAL_HOME):
        shutil.rmtree(USUAL_HOME)
    if not os.path.lexists(USUAL_HOME):
        os.symlink(home, USUAL_HOME)


def add_command(name: str) -> None:
    """Let the user call a script of our folder by its name; the image may have its own."""
    os.chmod(os.path.join(FOLDER, name), 0o755)
    os.makedirs("/usr/local/bin", exist_ok=True)
    link = os.path.join("/usr/local/bin", name)
    if not os.path.lexists(link):
        os.symlink(os.path.join(FOLDER, name), link)


def compile_zipapp(path: str) -> None:
    """Compile the warden for this Python, or every start would compile it again."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            if name.endswith(".py"):
                code = compile(data, name, "exec", dont_inherit=True)
                head = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH.to_bytes(4, "little") + bytes(8)
                name, data = name + "c", head + marshal.dumps(code)
            archive.writestr(name, data)
    os.chmod(path, 0o644)


def lay_out_python() -> None:
    """Install a Python for the warden.

    A program that its user may not read is not dumpable, so no process of the box can read or
    write the warden's memory, from its start on. If a copy cannot find its library, use a link;
    the warden then makes itself undumpable shortly after its start.
    """
    real = os.path.realpath(sys.executable)
    os.symlink(real, os.path.join(FOLDER, "python3-readable"))
    python = os.path.join(FOLDER, "python3")
    copy_unreadable(real, python)
    with open(os.path.join(FOLDER, "pyvenv.cfg"), "w", encoding="utf-8") as file:
        file.write("home = " + os.path.dirname(real) + "\n")
    check = "import ctypes, json, select, socket, struct, tarfile, zipimport"
    try:
        works = subprocess.call([python, "-I", "-S", "-c", check]) == 0
    except OSError:
        works = False
    if not works:
        os.unlink(python)
        os.symlink(real, python)


def copy_unreadable(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    os.chmod(target, 0o711)


if __name__ == "__main__":
    sys.exit(main())
