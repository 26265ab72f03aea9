"""A tiny encoder and a task it learns in a few steps: is there more of the one token or of the other?"""

import functools

import jax
import numpy as np

from finetune.search.examples import Examples, TrainingOrder, make_buckets, pad
from finetune.search.problem import HeadSettings, make_problem
from finetune.search.train import Hyper, Trainer
from pretrain.models.encoder import init_encoder
from pretrain.models.layers import EncoderConfig

PAD = 1
CONFIG = EncoderConfig(
  vocab_size=16, hidden_size=16, num_layers=1, num_heads=2, mlp_size=32, max_length=24, init_stddev=0.1
)
OPTIMIZER = {"clip_norm": 1.0}


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


def feed(seed: int):
  """Step to a host batch of the run with this seed."""
  given, sequence = examples(), order()

  def batch(step: int) -> dict[str, np.ndarray]:
    length, rows = sequence.batch(seed, step)
    return pad(given, rows, length=length, batch_size=8, pad_id=PAD)

  return batch


def trainer(**options) -> Trainer:
  """Returns a trainer of the tiny encoder, whose parameters each seed draws anew."""
  problem = make_problem(CONFIG, HeadSettings(), num_outputs=2, pad_id=PAD)
  init = functools.partial(init_encoder, config=CONFIG, pad_id=PAD)
  return Trainer(problem, init, OPTIMIZER, **options)


def trained(trainer: Trainer, hyper: Hyper, feed, steps: int):
  """The state after so many steps, and the metrics of each on the host."""
  state, metrics = trainer.init_state(hyper), []
  with jax.set_mesh(trainer.mesh):
    for at in range(steps):
      state, of_step = trainer.step(state, trainer.place_batch(feed(at)), trainer.place(hyper.arrays()))
      metrics.append(jax.device_get(of_step))
  return state, metrics
