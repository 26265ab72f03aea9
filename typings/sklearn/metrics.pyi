"""scikit-learn ships no types; pyright takes one from a default, as of `zero_division="warn"`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
