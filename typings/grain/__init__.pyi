"""Only what is called here: a sampler's indices are of a class that may, for pyright, always be None."""

from typing import Any

from grain import sources as sources

MapDataset: Any
