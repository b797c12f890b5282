"""docs/registry.md: its examples are a registry, and it has every field and placeholder."""

import re
from pathlib import Path

from sandbox_server.registry.agents import Agent, Tool
from sandbox_server.registry.folder import read_registry
from sandbox_server.registry.prompts import PLACEHOLDERS
from tests.unit.registry.test_folder import write

PAGE = (Path(__file__).parents[3] / "docs" / "registry.md").read_text()
EXAMPLES = dict(re.findall(r"^```yaml\n# registry/(\S+)\n(.*?)^```$", PAGE, re.M | re.S))


def test_the_examples_are_a_registry(tmp_path: Path) -> None:
    found = read_registry(write(tmp_path, EXAMPLES))
    kinds = {name.partition("/")[0] for name in EXAMPLES}
    assert kinds == {kind for kind, _ in found.by_kind()}
    assert found.agents["clerk"].tools == ("find_text", "save_note", "list_files")


def test_every_placeholder_and_field_is_documented() -> None:
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in PAGE, name
    for model in (Tool, Agent):
        for field in model.model_fields:
            assert f"`{field}`" in PAGE, field
