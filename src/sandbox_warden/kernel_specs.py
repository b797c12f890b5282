"""The Jupyter kernels that a box has, and which of them runs a language."""

import importlib.util
import json
import os
import pkgutil
import sys
from typing import Any, Dict, List, Mapping, Optional

from .errors import Refused

ALIASES = {
    "python": ("python", "python3", "ipython"),
    "javascript": ("javascript", "js", "node", "nodejs", "typescript"),
    "typescript": ("typescript", "ts"),
    "r": ("r", "ir"),
}
"""What kernels call a language, best first. A kernel for TypeScript runs JavaScript too."""
_FIX = {
    "python": "pip: [ipykernel]",
    "javascript": "npm: [tslab]",
    "typescript": "npm: [tslab]",
    "r": "apt: [r-cran-irkernel]",
}


class Spec:
    """How one kernel is started."""

    def __init__(self, name: str, language: str, argv: List[str], about: Mapping[str, Any]) -> None:
        self.name = name
        self.language = language
        self.argv = argv
        self.env = {str(k): str(v) for k, v in dict(about.get("env") or {}).items()}
        self.by_message = about.get("interrupt_mode") == "message"
        """Whether it is interrupted by a message instead of a signal."""
        self.is_ipykernel = any("ipykernel" in word for word in argv)


def spec_for(language: str, named: Mapping[str, str]) -> Spec:
    """The kernel of a language. named: kernel names by language, before all. Raises Refused."""
    specs = find_specs()
    if language in named:
        spec = specs.get(named[language])
        if spec is None:
            raise Refused("no_kernel", _missing(language, specs, named[language]))
        return spec
    for alias in ALIASES.get(language, (language,)):
        for name in sorted(specs):
            if alias in (specs[name].language.lower(), name.lower()):
                return specs[name]
    raise Refused("no_kernel", _missing(language, specs, None))


def find_specs() -> Dict[str, Spec]:
    """All kernels by name. Python's is the one of this interpreter, if it has ipykernel."""
    found: Dict[str, Spec] = {}
    for folder in _folders():
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            spec = _read(name, os.path.join(folder, name, "kernel.json"))
            if spec is not None:
                found.setdefault(name, spec)
    importlib.invalidate_caches()
    if importlib.util.find_spec("ipykernel") is not None:
        argv = [sys.executable, "-c", _launcher(), "-f", "{connection_file}"]
        found["python3"] = Spec("python3", "python", argv, {})
    return found


def _launcher() -> str:
    sources = getattr(sys.modules[__package__ or ""], "sources", None)
    if sources is not None:
        return str(sources["kernel_launch"])
    return (pkgutil.get_data(__package__ or "", "kernel_launch.py") or b"").decode()


def _folders() -> List[str]:
    """As jupyter_core has them, and those of packages installed into a folder of their own."""
    roots = [root for root in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if root]
    roots.append(os.path.expanduser("~/.local/share/jupyter"))
    for prefix in [os.environ.get("PYTHONUSERBASE", ""), sys.prefix, "/usr/local", "/usr"]:
        if prefix:
            roots.append(os.path.join(prefix, "share", "jupyter"))
    roots += [os.path.join(folder, "share", "jupyter") for folder in sys.path if folder]
    return [os.path.join(root, "kernels") for root in roots]


def _read(name: str, path: str) -> Optional[Spec]:
    try:
        with open(path, encoding="utf-8") as file:
            about = json.load(file)
        argv = [str(word) for word in about["argv"]]
        if argv[0] in ("python", "python3") or argv[0].startswith("python3."):
            argv[0] = sys.executable
        return Spec(name, str(about.get("language", "")), argv, about)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _missing(language: str, specs: Mapping[str, Spec], named: Optional[str]) -> str:
    have = ", ".join("%s (%s)" % (spec.language, name) for name, spec in sorted(specs.items()))
    what = "no Jupyter kernel for %s" % language
    if named is not None:
        what = "no Jupyter kernel named %s, which is set for %s" % (named, language)
    fix = "packages of its environment, such as `%s`" % _FIX[language] if language in _FIX else ""
    return "this sandbox has %s; it has: %s. Use an environment with one%s" % (
        what, have or "none", fix and ", or add it to the " + fix,
    )  # fmt: skip
