"""jax's own class loses the types of a function that `functools.partial(jax.custom_vjp, ...)` decorates."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

class _Differentiable(Generic[P, R]):
  def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
  def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None: ...

def custom_vjp(fun: Callable[P, R], nondiff_argnums: Sequence[int] = ()) -> _Differentiable[P, R]: ...
def __getattr__(name: str) -> Any: ...
