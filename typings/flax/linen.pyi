"""flax's own types allow `init` and `apply` a second form, and for `scan` one axis alone."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeVar, dataclass_transform

import jax
from jax.nn import initializers as initializers

Function = TypeVar("Function", bound=Callable[..., Any])

broadcast: Any

def compact(function: Function) -> Function: ...
def map_variables(target: Any, *mapped: Any, **options: Any) -> Any: ...
def remat(target: Any, **options: Any) -> Any: ...
def scan(target: Any, **options: Any) -> Any: ...

@dataclass_transform(field_specifiers=(field,))
class _Fields: ...

class Module(_Fields):
  parent: Any = field(default=None, kw_only=True)
  name: str | None = field(default=None, kw_only=True)
  def __call__(self, *arguments: Any, **options: Any) -> Any: ...
  def init(self, key: jax.Array, *arguments: Any, **options: Any) -> dict[str, Any]: ...
  def apply(self, variables: dict[str, Any], *arguments: Any, **options: Any) -> Any: ...
  def get_variable(self, collection: str, name: str) -> Any: ...
  def is_initializing(self) -> bool: ...
  def param(self, name: str, init: Callable[..., Any], *arguments: Any) -> jax.Array: ...

class Dense(Module):
  features: int
  use_bias: bool = True
  dtype: Any = None
  param_dtype: Any = None
  kernel_init: Any = None
