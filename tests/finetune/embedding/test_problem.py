"""Gradients of the embedding stage: equal however a batch is divided into groups, parts and devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune.embedding.batches import name_of
from finetune.embedding.problem import StageObjective
from pretrain.embed.schema import EmbeddingSchema
from pretrain.losses import unit_vectors
from tests.finetune import small_task
from tests.finetune.embedding import small

STEPS = 3
BOUND = {"rtol": 1e-5, "atol": 1e-6}
MATRYOSHKA = EmbeddingSchema("mean", True, sizes=(8, 4))


@functools.cache
def _trained(most=1, divisor=1, microbatches=1, devices=1, objective=small.RANKING, schema=small.SCHEMA):
  texts = small.texts(sides=2 if objective.kind != "ranking" else 3)
  feed = small.feed(texts, most=most, divisor=divisor)
  program = small.program(
    len(feed.shapes.counts),
    objective=objective,
    schema=schema,
    microbatches=microbatches,
    dropout=0.1,
    devices=jax.devices()[:devices],
  )
  group = program.group(small_task.runs([0]))
  state, figures = group.init_state(), []
  for step in range(STEPS):
    state, metrics = group.train_step(state, feed(step))
    figures.append([float(np.squeeze(metrics[name][0])) for name in ("loss", "grad_norm")])
  return np.asarray(figures), group.params_of(state.params, 0)


def _assert_same(found, expected):
  jax.tree.map(functools.partial(np.testing.assert_allclose, **BOUND), found, expected)


# Groups of several lengths; two parts a group; four devices; parts on devices. Dropout is that of the text.
@pytest.mark.parametrize(
  ("most", "divisor", "microbatches", "devices"), [(3, 1, 1, 1), (3, 2, 2, 1), (3, 4, 1, 4), (2, 8, 2, 4)]
)
def test_cached_gradients_and_devices_change_only_rounding(most, divisor, microbatches, devices):
  _assert_same(_trained(most, divisor, microbatches, devices), _trained())


@pytest.mark.parametrize(
  ("objective", "schema"),
  [
    (StageObjective("ranking", 0.05, True), MATRYOSHKA),
    (StageObjective("cosent", 0.05, False), small.SCHEMA),
    (StageObjective("cosine", 0.05, False), EmbeddingSchema("last", False)),
  ],
)
def test_every_objective_is_the_same_on_devices_and_in_parts(objective, schema):
  alone = _trained(objective=objective, schema=schema)
  _assert_same(_trained(2, 8, 2, 4, objective, schema), alone)
  assert abs(alone[0][0, 0]) > 0.01


def test_the_loss_is_that_of_the_texts_one_by_one():
  """Each text encoded alone, without padding, then the formula of the loss written out."""
  texts = small.texts()
  feed = small.feed(texts, most=3)
  batch = {name: leaf[0] for name, leaf in feed(0).items()}
  program = small.program(len(feed.shapes.counts), devices=jax.devices()[:1])
  group = program.group(small_task.runs([0]))
  state = group.init_state()
  _, rows = feed.order.batch(0, 0)
  vectors = []
  for number in texts.texts[rows].reshape(-1):
    ids = texts.ids[int(number)] if number >= 0 else np.asarray([0, 2], np.int32)
    one = {"ids": ids[None, None], "weights": np.ones((1, 1), np.float32)}
    vectors.append(group.outputs(state.params, one)[0, 0])
  of_rows = np.asarray(unit_vectors(jnp.asarray(np.stack(vectors)))).reshape(8, 3, -1)
  keys = texts.keys[rows]
  candidates = [(row, side) for side in (1, 2) for row in range(8) if keys[row, side] >= 0]
  total = 0.0
  for row in range(8):
    others = [at for at in candidates if at == (row, 1) or keys[at] != keys[row, 1]]
    scores = np.asarray([of_rows[row, 0] @ of_rows[at] / 0.05 for at in others], np.float64)
    total += np.logaddexp.reduce(scores) - scores[others.index((row, 1))]
  _, metrics = group.train_step(state, feed(0))
  np.testing.assert_allclose(np.squeeze(metrics["loss"][0]), total / 8, rtol=1e-5)
  assert batch["weights"].sum() == 8


def test_a_batch_holds_every_text_once_and_its_place_finds_it():
  texts = small.texts(rows=21)
  feed = small.feed(texts, most=3, divisor=2)
  assert sorted(int(feed(step)["weights"].sum()) for step in range(3)) == [5, 8, 8]  # an epoch
  for step in range(3):
    batch = {name: leaf[0] for name, leaf in feed(step).items()}
    _, rows = feed.order.batch(0, step)
    assert batch["weights"].sum() == len(rows)
    joined = [ids for at in range(len(feed.shapes.counts)) for ids in batch[name_of("ids", at)]]
    places = batch["place"].reshape(8, 3)
    slots = np.concatenate([batch[name_of("slots", at)] for at in range(len(feed.shapes.counts))])
    for row, number in enumerate(rows):
      for side, text in enumerate(texts.texts[number]):
        tokens = joined[places[row, side]]
        assert slots[places[row, side]] == 3 * row + side
        expected = texts.ids[int(text)] if text >= 0 else []
        np.testing.assert_array_equal(tokens[tokens != small.PAD], expected)


def test_all_steps_have_the_shapes_of_the_layout():
  texts = small.texts(rows=40)
  feed = small.feed(texts, most=3)
  assert len(feed.shapes.counts) == 3 and sum(feed.shapes.counts) == 24
  assert list(feed.shapes.lengths) == sorted(feed.shapes.lengths, reverse=True)
  shapes = {tuple((name, leaf.shape) for name, leaf in sorted(feed(step).items())) for step in range(20)}
  assert len(shapes) == 1
