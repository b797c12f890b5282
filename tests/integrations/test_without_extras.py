"""Whoever does not use a framework does not need it."""

import subprocess
import sys

import pytest

EXTRAS = (
    "agents", "anthropic", "deepagents", "langchain", "langchain_core", "langgraph", "mcp",
    "mcp_types",
)  # fmt: skip

BLOCKED = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + source],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "source",
    [
        "import sandbox_sdk, sandbox_sdk.cli.app, sandbox_sdk.integrations.tools",
        "from sandbox_server import main, settings\n"
        "from sandbox_sdk.testing import FakeBackend\n"
        "app = main.make_app(FakeBackend(), settings.load())\n"
        "assert '/mcp' not in [getattr(route, 'path', '') for route in app.routes]",
    ],
)
def test_the_rest_works(source: str) -> None:
    done = run(source)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_told() -> None:
    done = run("from sandbox_sdk.cli import main\nmain(['mcp'])")
    assert done.returncode == 125
    assert "pip install 'agent-sandbox[mcp]'" in done.stderr


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("integrations.langchain", "langchain"),
        ("integrations.langgraph_checkpoints", "langchain"),
        ("integrations.deepagents", "deepagents"),
        ("integrations.openai_agents", "openai-agents"),
        ("integrations.anthropic", "anthropic"),
        ("integrations.mcp", "mcp"),
        ("testing.langchain", "langchain"),
    ],
)
def test_an_integration_names_its_extra(module: str, extra: str) -> None:
    done = run(f"import sandbox_sdk.{module}")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(f": pip install 'agent-sandbox[{extra}]'")
