"""Fork bombs."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox_server.policy.bash.syntax import (
    Compound,
    Function,
    How,
    Kind,
    Node,
    Pipeline,
    Sequence,
    Simple,
)


def is_fork_bomb(function: Function) -> bool:
    """Whether the function unconditionally pipes itself into itself, or calls itself twice, once
    in the background. Recursion behind an `if` may end, so it is not a bomb."""
    for pipeline in _pipelines(function.body):
        if sum(_calls(member, function.name) for member in pipeline.members) > 1:
            return True
    calls = list(_unconditional(function.body, How.ALWAYS, function.name))
    return len(calls) > 1 and How.BACKGROUND in calls


def _calls(node: Node, name: str) -> bool:
    return isinstance(node, Simple) and bool(node.words) and node.words[0].bare() == name


def _pipelines(node: Node) -> Iterator[Pipeline]:
    if isinstance(node, Pipeline):
        yield node
        for member in node.members:
            yield from _pipelines(member)
    elif isinstance(node, Compound):
        for body in node.bodies:
            yield from _pipelines(body)
    elif isinstance(node, Sequence):
        for item, _ in node.items:
            yield from _pipelines(item)


def _unconditional(node: Node, how: How, name: str) -> Iterator[How]:
    if _calls(node, name):
        yield how
    elif isinstance(node, Sequence):
        for item, within in node.items:
            if within is not How.MAYBE:
                yield from _unconditional(item, within, name)
    elif isinstance(node, Compound) and node.kind in (Kind.GROUP, Kind.SUBSHELL):
        for body in node.bodies:
            yield from _unconditional(body, how, name)
