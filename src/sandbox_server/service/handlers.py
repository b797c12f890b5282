"""What carries out operations: a function for each, which takes the tenant and the request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sandbox_sdk.protocol.operations import Operation

Handlers = Mapping[Operation[Any, Any], Callable[[str, Any], Awaitable[Any]]]
