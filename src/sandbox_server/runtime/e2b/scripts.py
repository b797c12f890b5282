"""What is run in a sandbox: the scripts of this package, and the warden's prelude for a shell."""

from __future__ import annotations

import json
import pkgutil
from hashlib import sha256

from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_warden import shell


def _read(name: str, package: str = __package__) -> str:
    found = pkgutil.get_data(package, name)
    assert found is not None, f"{name} is part of the package"
    return found.decode()


LAUNCH = """cd "$HOME/.sandbox" || exit 125
set -- bash launch "$@"
if type -P python3 >/dev/null; then exec python3 -IS subreaper "$@"; fi
exec "$@"
"""
"""Where the home is, the sandbox knows."""
INSTALL, SIGNAL, REPORT = _read("install.sh"), _read("signal.sh"), _read("report.sh")
ABOUT, CHANGES = _read("about.sh"), _read("changes.sh")


def installed_files(key: str) -> dict[str, str]:
    """Contents by name in ~/.sandbox. key: marks a state that was saved whole."""
    prelude = _read("prelude.sh", shell.__package__)
    return {
        "launch": _read("launch.sh"),
        "subreaper": _read("subreaper.py"),
        "filter": _read("filter.sed"),
        "prelude": prelude.replace("KEY", key).replace("STEP", ""),
        "script": shell.ARGV[-1],
        "fresh": f"__sandbox_load {WORKSPACE} '' ''\n__sandbox_loaded=all\n",
    }


def install_arguments(key: str) -> list[str]:
    return [key, *(part for pair in installed_files(key).items() for part in pair)]


def build() -> str:
    """Version of what is installed in a new sandbox."""
    text = json.dumps([INSTALL, SIGNAL, REPORT, installed_files("KEY")])
    return f"e2b-{sha256(text.encode()).hexdigest()[:12]}"
