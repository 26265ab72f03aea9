"""Searches that are started several times in one file are compiled once."""

import contextlib
from collections.abc import Iterator

import jax
import pytest

from finetune.search import search
from finetune.search.train import Trainer


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
  """Inside, searches with the same heads and optimizer get the same `Trainer`, on one device.

  All of them have to start from the same checkpoint with the same model settings, which are not compared.
  """
  made: dict[str, Trainer] = {}
  device = jax.devices()[:1]

  def trainer(problem, init_encoder, optimizer, *, devices, **options) -> Trainer:
    heads = jax.eval_shape(problem.init_heads, jax.random.key(0))
    name = f"{heads} {optimizer} {sorted(options.items())}"
    if name not in made:
      made[name] = Trainer(problem, init_encoder, optimizer, devices=devices, **options)
    return made[name]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(search, "Trainer", trainer)
    patch.setattr(jax, "local_devices", lambda: device)
    patch.setattr(jax, "clear_caches", lambda: None)  # which ends every search
    yield
