"""Every subcommand with its arguments and options, as docs/cli.md has them.

python scripts/cli_reference.py    writes the page; a test fails where it differs
"""

from __future__ import annotations

import re
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from sandbox_sdk.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def text() -> str:
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="sandbox")
    page = get_docs_for_click(obj=command, ctx=context, name="sandbox", title="The command line")
    first_lines = dict(re.findall(r"^## `sandbox (.+)`\n\n(.+)$", page, re.M))
    for name, line in first_lines.items():  # typer cuts them short in its list.
        page = re.sub(rf"^\* `{name}`: .*$", f"* `{name}`: {line}", page, count=1, flags=re.M)
    return f"{page.strip()}\n"


if __name__ == "__main__":
    PAGE.write_text(text())
