"""The parameters of a declared tool: a JSON schema, and arguments that fit it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sandbox_server.registry.agents import Tool
from sandbox_server.registry.yaml_lines import Path

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TOLD = 3


def schema_of(tool: Tool) -> dict[str, Any]:
    """As models and validators see it: an argument that is not declared is refused."""
    return {"type": "object", "properties": {}, "additionalProperties": False, **tool.parameters}


def wrong_schema(parameters: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Where a schema is wrong, and why."""
    # Here and below: slow to import, and only needed where tools are declared.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not parameters:
        return None
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as exc:
        return tuple(exc.absolute_path), f"not a JSON schema: {_first_line(exc.message)}"
    if parameters.get("type", "object") != "object":
        return ("type",), 'the arguments of a tool are an "object"'
    properties = parameters.get("properties", {})
    for name in properties:
        if not _NAME.fullmatch(name):
            return ("properties", name), f"{name!r}: use letters, digits and _"
    for name in parameters.get("required", []):
        if name not in properties:
            return ("required",), f'no property "{name}"'
    for path, reference in _references(parameters):
        if not _resolves(parameters, reference):
            return path, f'"{reference}" is not in this schema'
    return None


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with the defaults of those that are left out. Raises ValueError."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry: the validator must not fetch a schema from anywhere.
    validator = Draft202012Validator(schema_of(tool), registry=Registry())
    wrong = [
        ": ".join(filter(None, [".".join(map(str, error.absolute_path)), error.message[:200]]))
        for error in sorted(validator.iter_errors(dict(arguments)), key=lambda e: str(e.path))
    ]
    if wrong:
        raise ValueError(f"{tool.name}: {'; '.join(wrong[:_TOLD])}")
    defaults = {
        name: schema["default"]
        for name, schema in tool.parameters.get("properties", {}).items()
        if isinstance(schema, dict) and "default" in schema
    }
    return {**defaults, **arguments}


def _references(schema: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    if isinstance(schema, list):
        for at, item in enumerate(schema):
            yield from _references(item, (*path, at))
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield (*path, key), value
            else:
                yield from _references(value, (*path, key))


def _resolves(schema: Any, reference: str) -> bool:
    """Whether it is a pointer into the same schema."""
    if not reference.startswith("#/"):
        return False
    for step in reference[2:].split("/"):
        if not isinstance(schema, dict) or step not in schema:
            return False
        schema = schema[step]
    return True


def _first_line(text: str) -> str:
    return text.splitlines()[0][:200]
