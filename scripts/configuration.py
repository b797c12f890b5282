"""What follows from the settings: the tables in docs/configuration.md, and the units in deploy/.

python scripts/configuration.py    writes them; a test fails where they differ
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sandbox_sdk.variables import VARIABLES
from sandbox_server.cli.systemd import unit, unit_name
from sandbox_server.settings import Entry, entries
from sandbox_server.settings.fields import ALL, FLEET, MAKES_BOXES, SERVERS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/configuration.md"
START, END = "<!-- settings -->\n", "<!-- end of settings -->\n"
UNITS = {
    role: ROOT / "deploy/systemd" / unit_name(role)
    for role in ("standalone", "worker", "coordinator")
}
PROGRAM = Path("/opt/agent-sandbox/bin/sandbox")
WHO = {ALL: "all", MAKES_BOXES: "boxes", SERVERS: "servers", FLEET: "fleet"}


def text() -> str:
    """All settings, in Markdown."""
    parts = []
    for topic, group in groupby(entries(), key=lambda entry: entry.about.topic):
        rows = "\n".join(map(_row, group))
        parts.append(
            f"### {topic}\n\n| variable | default | unit | who | meaning |\n"
            f"| --- | --- | --- | --- | --- |\n{rows}\n"
        )
    clients = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items())
    parts.append(f"### Clients\n\n| variable | meaning |\n| --- | --- |\n{clients}\n")
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    about = entry.about
    default = f"`{entry.default}`" if entry.default else about.otherwise or "none"
    who = WHO.get(about.roles, ", ".join(about.roles))
    if about.runtimes:
        who += f"; {', '.join(about.runtimes)} only"
    meaning = entry.meaning
    if about.example:
        meaning += f" Example: `{about.example}`"
    cells = (f"`{entry.variable}`", default, about.unit, who, meaning)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def written(page: str) -> str:
    """The page with today's settings in it."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{text()}{END}{after}"


def unit_of(role: str) -> str:
    name = "sandbox" if role == "standalone" else role
    return unit(role, program=PROGRAM, settings=Path(f"/etc/agent-sandbox/{name}.env"))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    for role, path in UNITS.items():
        path.write_text(unit_of(role))
