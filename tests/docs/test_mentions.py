"""What the documents speak of is there: variables, routes, options of the command line, pages."""

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from starlette.routing import WebSocketRoute

from sandbox_sdk.cli.app import app
from sandbox_server.api.app import create_app
from sandbox_server.api.metrics import PATH as METRICS
from sandbox_server.settings import Settings
from tests.api.fake import FakeTenants

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"))
    if page.name != "CHANGELOG.md"  # It also tells of what is gone.
)
OF_CLIENTS = {"SANDBOX_URL", "SANDBOX_API_KEY", "SANDBOX_THREAD"}
IN_BOXES = {"SANDBOX_COMMAND_ID"}
OF_DEVELOPMENT = {"SANDBOX_CACHE"}

_VARIABLE = re.compile(r"\bSANDBOX_[A-Z0-9_]*[A-Z0-9]\b")
_ROUTE = re.compile(r"\b(GET|POST|PUT|DELETE) (/[\w/{}]*)")
_COMMAND = re.compile(r"(?:^|[`\s(;&|])sandbox ((?!_)[a-z][^`\n#]*)", re.M)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)

pytestmark = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_variables(page: Path) -> None:
    settings = {f"SANDBOX_{name.upper()}" for name in Settings.model_fields}
    known = settings | OF_CLIENTS | IN_BOXES | OF_DEVELOPMENT
    spoken = {name for name in _VARIABLE.findall(page.read_text()) if "_TEST_" not in name}
    assert spoken - known == set()


@functools.cache
def _routes() -> frozenset[str]:
    made = create_app(FakeTenants())
    paths = made.openapi()["paths"]
    known = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    known |= {f"GET {route.path}" for route in made.routes if isinstance(route, WebSocketRoute)}
    return frozenset({*known, f"GET {METRICS}"})


def test_routes(page: Path) -> None:
    assert {" ".join(route) for route in _ROUTE.findall(page.read_text())} <= _routes()


def test_subcommands_and_their_options(page: Path) -> None:
    commands = dict(_subcommands(typer.main.get_command(app)))
    wrong = []
    for code in _CODE.findall(page.read_text()):
        for line in _COMMAND.findall(re.sub(r"(?<!\$)#.*", "", code)):
            words = _words(line)
            name = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
            options = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
            if name not in commands or options - commands[name]:
                wrong.append(line)
    assert wrong == []


def test_links(page: Path) -> None:
    broken = []
    for link in _LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


def _subcommands(command: Any, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """The options of each subcommand. One with a rest of arguments of its own has any."""
    for each, found in getattr(command, "commands", {}).items():
        yield from _subcommands(found, f"{name} {each}".strip())
    options = {option for parameter in command.params for option in parameter.opts}
    if name:
        yield name, options | {"-h", "--help"}


def _words(line: str) -> list[str]:
    """Up to the next command of the line: its options are not ours."""
    try:
        words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
    except ValueError:  # A quotation that goes on in the next line.
        words = line.split("'")[0].split()
    ends = [n for n, word in enumerate(words) if word and set(word) <= set("();<>|&")]
    return words[: ends[0]] if ends else words


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}
