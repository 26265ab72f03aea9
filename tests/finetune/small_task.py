"""A tiny encoder and a task it learns in a few steps: is there more of the one token or of the other?"""

import functools

import numpy as np

from finetune.search.classification import HeadSettings, make_problem
from finetune.search.examples import Examples, TrainingOrder, make_buckets, pad
from finetune.search.program import Program, Runs
from pretrain import optim
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import EncoderConfig

PAD = 1
CONFIG = EncoderConfig(
  vocab_size=16, hidden_size=16, num_layers=1, num_heads=2, mlp_size=32, max_length=24, init_stddev=0.1
)
SETTINGS = optim.OptimizerSettings(learning_rate=0.0, total_steps=1, clip_norm=1.0)


def examples(count: int = 24, seed: int = 0) -> Examples:
  """Texts of 4 to 20 tokens; the label says which of the tokens 7 and 8 there is more of."""
  random = np.random.default_rng(seed)
  ids, labels = [], []
  for _ in range(count):
    inside = random.integers(7, 9, 2 * random.integers(1, 10) - 1)
    ids.append(np.asarray([0, *inside, 2], np.int32))
    labels.append(np.sum(inside == 8) > np.sum(inside == 7))
  return Examples(ids, {"labels": np.asarray(labels, np.int32)}, {})


def order(batch_size: int = 8) -> TrainingOrder:
  """Buckets of `examples()` in batches."""
  return TrainingOrder(make_buckets(examples(), most=1, multiple=8, max_length=24), batch_size, shape_seed=1)


def feed(seeds, of: Examples | None = None):
  """Step to a host batch of runs with these seeds."""
  given, sequence = of or examples(), order()

  def batch(step: int) -> dict[str, np.ndarray]:
    parts = []
    for seed in seeds:
      length, rows = sequence.batch(int(seed), step)
      parts.append(pad(given, rows, length=length, batch_size=8, pad_id=PAD))
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}

  return batch


def program(mapping: str = "auto", init=None, **options) -> Program:
  """Of the tiny encoder, with fresh parameters for each seed unless `init` gives them."""
  problem = make_problem(CONFIG, HeadSettings(), num_outputs=2, pad_id=PAD)
  init = init or functools.partial(init_encoder, config=CONFIG, pad_id=PAD)
  return Program(problem, init, SETTINGS, mapping=mapping, **options)


def runs(seeds, *, learning_rates=None, total_steps: int = 12, warmup_steps: int = 2) -> Runs:
  """Runs of these seeds."""
  count = len(seeds)
  rates = [3e-3] * count if learning_rates is None else learning_rates
  return Runs(
    np.asarray(seeds, np.int32),
    np.asarray(rates, np.float32),
    np.full(count, total_steps, np.int32),
    np.full(count, warmup_steps, np.int32),
  )
