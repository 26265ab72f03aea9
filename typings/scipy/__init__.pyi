"""scipy ships no types; pyright does not see the fields of results that it makes at run time."""

from typing import Any

def __getattr__(name: str) -> Any: ...
