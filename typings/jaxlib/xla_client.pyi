"""jaxlib ships no types of its compiled parts; without a class `jax.Device` is no type at all."""

from typing import Any

class Device:
  id: int
  process_index: int
  platform: str
  device_kind: str
  def memory_stats(self) -> dict[str, int] | None: ...
  def __getattr__(self, name: str) -> Any: ...

def __getattr__(name: str) -> Any: ...
