"""Reading the settings, with one clear line for what is wrong."""

from __future__ import annotations

import os
import re
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from sandbox_sdk.nearest import did_you_mean
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.settings.catalogue import example_of, is_secret
from sandbox_server.settings.fields import PREFIX
from sandbox_server.settings.model import Settings, variable_of


def load(**overrides: Any) -> Settings:
    """Read the settings. Raises InvalidRequest with a one-line message for invalid values."""
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in given.keys() - Settings.model_fields.keys():
        near = did_you_mean(name, Settings.model_fields)
        raise InvalidRequest(f"unknown setting {name!r}; {near or '`sandbox config` lists them'}")
    try:
        settings = Settings(**given)
    except SettingsError as exc:
        field = re.search(r'field "(\w+)"', str(exc))
        name = field[1] if field else ""
        raise InvalidRequest(
            f"{variable_of(name)}: not a JSON object{_for_example(name, variable_of(name))}"
        ) from None
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        problems = "; ".join(_problem(error, given) for error in errors)
        raise InvalidRequest(problems) from None
    settings._in_code = frozenset(given)
    return settings


def _problem(error: Any, given: dict[str, Any]) -> str:
    """The name as it was set, what is wrong with the value, and a right one."""
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    name = str(error["loc"][0]).removeprefix(PREFIX).lower()
    shown = name if name in given else variable_of(name)
    if error["type"] != "value_error" and not is_secret(name):  # Ours have the value already.
        value = given.get(name, os.environ.get(shown, error["input"]))
        message = f"{message}, not {value!r}"
    return f"{shown}: {message}{_for_example(name, shown)}"


def _for_example(name: str, shown: str) -> str:
    example = example_of(name)
    if shown.islower() and not example.isdigit():
        example = repr(example)  # An argument in Python.
    return f"; for example {shown}={example}"
