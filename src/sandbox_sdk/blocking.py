"""Synchronous classes over asynchronous ones: their methods wait for those of the other.

A method is written once, in the asynchronous class. Signature and docstring are taken from there,
for type checkers, help() and an IDE alike.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from sandbox_sdk.background import Background

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class Blocking:
    """What calls the methods of an asynchronous object, in the background loop."""

    def __init__(self, awaited: Any, background: Background) -> None:
        self._awaited = awaited
        self._background = background

    def __repr__(self) -> str:
        return repr(self._awaited).replace("<Async", "<", 1)

    def _run(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        return self._background.run(work)

    def _iterate(self, make: Callable[[], AsyncGenerator[_Result]]) -> Generator[_Result]:
        return self._background.iterate(make)


def blocking(
    method: Callable[Concatenate[Any, _Params], Awaitable[_Result]],
) -> Callable[Concatenate[Any, _Params], _Result]:
    """The method of a Blocking class that waits for this one."""

    def waiting(self: Blocking, /, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        result: _Result = self._run(
            partial(getattr(self._awaited, method.__name__), *args, **kwargs)
        )
        return result

    return like(method, waiting)


def iterating(
    method: Callable[Concatenate[Any, _Params], AsyncGenerator[_Result]],
) -> Callable[Concatenate[Any, _Params], Generator[_Result]]:
    """The method of a Blocking class that yields what this one yields."""

    def iterated(
        self: Blocking, /, *args: _Params.args, **kwargs: _Params.kwargs
    ) -> Generator[_Result]:
        # The generator holds self, and thereby the client: one that nobody holds is closed.
        return self._iterate(lambda: getattr(self._awaited, method.__name__)(*args, **kwargs))

    return like(method, iterated)


def like(
    method: Callable[..., Any], made: Callable[_Params, _Result]
) -> Callable[_Params, _Result]:
    """Named and documented as the method; an `AsyncProcess` of its signature is a `Process`."""
    update_wrapper(made, method)
    signature = inspect.signature(method)
    returns = str(signature.return_annotation).replace("Async", "")
    made.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return made
