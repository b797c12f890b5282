"""API_REFERENCE.md says what the OpenAPI document says, no less and no more."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import Limits
from sandbox_server.api.app import create_app
from tests.api.fake import FakeTenants

REFERENCE = (Path(__file__).parents[2] / "API_REFERENCE.md").read_text()
DOCUMENT = create_app(FakeTenants()).openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", REFERENCE, re.M | re.S))


def part(operation: str, title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)(?=^### |\Z)", SECTIONS[operation], re.M | re.S)
    assert found, f"{operation} has no {title}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    tables = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
    return [row for row in tables if not set(row[0]) <= {"-", " "}]


def first_cells(text: str) -> set[str]:
    return {row[0].strip("`") for row in rows(text) if row[0].startswith("`")}


def resolved(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects a schema can be."""
    if name := schema.get("$ref"):
        yield from resolved(DOCUMENT["components"]["schemas"][name.rpartition("/")[2]])
    for choice in (*schema.get("anyOf", []), *schema.get("oneOf", [])):
        yield from resolved(choice)
    if schema.get("type") == "array":
        yield from resolved(schema["items"])
    if "properties" in schema:
        yield schema


def fields(schema: dict[str, Any], *, deep: bool) -> set[str]:
    found = set()
    for each in resolved(schema):
        for name, value in each["properties"].items():
            found |= {name} | (fields(value, deep=True) if deep else set())
    return found


def test_the_same_operations_in_the_same_order() -> None:
    named = [title for title in SECTIONS if title.startswith(("GET /", "POST /", "DELETE /"))]
    assert named == list(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_request(name: str) -> None:
    operation = OPERATIONS[name]
    expected = {parameter["name"] for parameter in operation.get("parameters", [])}
    for content in operation.get("requestBody", {"content": {}})["content"].values():
        expected |= fields(content["schema"], deep=False)
    assert first_cells(part(name, "Request")) == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_answer(name: str) -> None:
    success = next(iter(OPERATIONS[name]["responses"].values()))
    schema = success["content"].get("application/json", {}).get("schema", {})
    text = part(name, "Answer")
    if not schema:
        return
    named = first_cells(text) | set(re.findall(r"`(\w+)`", text))
    # The limits of a session are told where sessions are made.
    told_elsewhere = set(Limits.model_fields) if name == "GET /session" else set()
    assert fields(schema, deep=True) - told_elsewhere <= named
    assert first_cells(text) <= fields(schema, deep=True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_statuses_and_codes(name: str) -> None:
    expected = {}
    for status, answer in OPERATIONS[name]["responses"].items():
        content = answer.get("content", {}).get("application/json", {})
        expected[status] = set(content.get("examples", {}))
    found = {}
    for status, *told in rows(part(name, "Statuses"))[1:]:
        codes = re.findall(r"`([a-z_]+)`", " ".join(told)) if status >= "4" else []
        found[status] = set(codes) - {"details"}
    assert found == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_in_both_languages(name: str) -> None:
    text = part(name, "Examples")
    assert re.search(r"```bash\n[^`]*\bcurl ", text)
    assert "```python\n" in text


def test_every_error_is_in_the_table() -> None:
    told = {(row[0].strip("`"), row[1]) for row in rows(SECTIONS["Errors"])[1:]}
    tree = [error for error in vars(errors).values() if isinstance(error, type)]
    known = [error for error in tree if issubclass(error, errors.SandboxError)]
    all_of_them: list[type[errors.SandboxError]] = list(known)
    assert told == {(error.code, str(error.status)) for error in all_of_them}
