"""Within a kernel nothing has the type that Python would give it."""

from collections.abc import Callable
from typing import Any

def jit(function: Callable[..., Any]) -> Any: ...
def __getattr__(name: str) -> Any: ...
