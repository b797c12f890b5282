"""Docstrings that are written once, for a client and its synchronous twin, and for options that
several methods take: so that help() and an IDE show them everywhere."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, TypeVar

from sandbox_sdk.options import CommandOptions

_Class = TypeVar("_Class", bound=type)
_Method = TypeVar("_Method", bound=Callable[..., Any])


def takes_options(
    kind: type = CommandOptions, *, without: Sequence[str] = ()
) -> Callable[[_Method], _Method]:
    """For a method with `**options: Unpack[CommandOptions]`, or another kind: its signature spells
    the options out and its docstring explains them."""

    def documented(method: _Method) -> _Method:
        signature = inspect.signature(method)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=getattr(type_, "__forward_arg__", type_),
            )
            for name, type_ in kind.__annotations__.items()
            if name not in without
        ]
        method.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        method.__doc__ = f"{inspect.getdoc(method) or ''}\n\n{inspect.getdoc(kind) or ''}"
        return method

    return documented


def twin_of(other: type) -> Callable[[_Class], _Class]:
    """For a synchronous class: methods without a docstring have that of the other's, and spelled
    out options too."""

    def documented(cls: _Class) -> _Class:
        for name, mine in vars(cls).items():
            # `adispatch` of a class that has both kinds is the other's `dispatch`.
            theirs = getattr(other, name, None) or getattr(other, name.removeprefix("a"), None)
            if theirs is None or mine.__doc__ or name.startswith("_"):
                continue
            mine.__doc__ = theirs.__doc__
            if isinstance(mine, FunctionType) and mine.__code__.co_flags & inspect.CO_VARKEYWORDS:
                returns = inspect.signature(mine).return_annotation
                spelled_out = inspect.signature(theirs)
                mine.__signature__ = spelled_out.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return cls

    return documented


def with_contents(groups: Mapping[str, Sequence[str]]) -> Callable[[_Class], _Class]:
    """Adds a list of the methods to the docstring of a class, by group and with a line each."""

    def documented(cls: _Class) -> _Class:
        parts = [inspect.cleandoc(cls.__doc__ or "")]
        for group, names in groups.items():
            lines = [f"{name:<18}{_first_line(getattr(cls, name))}" for name in names]
            parts.append(f"{group}:\n\n" + textwrap.indent("\n".join(lines), "    "))
        cls.__doc__ = "\n\n".join(parts) + "\n"
        return cls

    return documented


def _first_line(method: Any) -> str:
    """The first sentence of a docstring."""
    sentence, _, _ = (inspect.getdoc(method) or "").partition(". ")
    return " ".join(sentence.partition("\n\n")[0].split()).rstrip(".")
