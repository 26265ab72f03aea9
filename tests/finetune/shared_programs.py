"""Searches that are started several times in one file are compiled once."""

import contextlib
from collections.abc import Iterator

import jax
import pytest

from finetune.search import search
from finetune.search.program import Program


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
  """Inside, searches with the same heads, optimizer and mapping get the same `Program`.

  All of them have to start from the same checkpoint with the same model settings, which are not compared.
  """
  made: dict[str, Program] = {}

  def program(problem, init_encoder, settings, **options) -> Program:
    heads = jax.eval_shape(problem.init_heads, jax.random.key(0))
    name = f"{heads} {settings} {sorted(options.items())}"
    if name not in made:
      made[name] = Program(problem, init_encoder, settings, **options)
    return made[name]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(search, "Program", program)
    patch.setattr(jax, "clear_caches", lambda: None)  # which ends every search
    yield
