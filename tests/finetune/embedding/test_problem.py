"""The embedding stage's batches, and its loss however a batch is divided into groups, parts and devices."""

import functools

import jax
import numpy as np
import pytest

from finetune.embedding import batches
from finetune.embedding.problem import StageObjective
from pretrain.embed.schema import EmbeddingSchema
from tests.finetune import small_task
from tests.finetune.embedding import small

STEPS = 3
BOUND = {"rtol": 1e-5, "atol": 1e-6}
MATRYOSHKA = EmbeddingSchema("mean", True, sizes=(8, 4))


def _trained(objective, schema, *, most=1, divisor=1, microbatches=1, devices=1):
  feed = small.feed(small.texts(sides=2 if objective.kind != "ranking" else 3), most=most, divisor=divisor)
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


BOTH_WAYS = StageObjective("ranking", 0.05, True)
COSENT, LAST = StageObjective("cosent", 0.05, False), EmbeddingSchema("last", False)


# Groups of several lengths in two parts each on four devices; groups on devices. Dropout is the text's own.
@pytest.mark.parametrize(
  ("objective", "schema", "layout"),
  [
    (BOTH_WAYS, MATRYOSHKA, {"most": 2, "divisor": 8, "microbatches": 2, "devices": 4}),
    (COSENT, LAST, {"most": 3, "divisor": 4, "devices": 4}),
  ],
  ids=["parts", "groups"],
)
def test_cached_gradients_and_devices_change_only_rounding(objective, schema, layout):
  alone = _trained(objective, schema)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, **BOUND), _trained(objective, schema, **layout), alone
  )
  assert abs(alone[0][0, 0]) > 0.01


@pytest.mark.parametrize(
  ("objective", "schema"),
  [
    (BOTH_WAYS, MATRYOSHKA),
    (StageObjective("ranking", 0.5, False), EmbeddingSchema("cls", False)),
  ],
  ids=["sizes", "lengths"],
)
def test_the_loss_is_that_of_the_texts_one_by_one(objective, schema):
  """Each text encoded alone, without padding; then the definition of the loss, for each size of vectors."""
  texts = small.texts()
  feed = small.feed(texts, most=3)
  program = small.program(
    len(feed.shapes.counts), devices=jax.devices()[:1], objective=objective, schema=schema
  )
  group = program.group(small_task.runs([0]))
  state = group.init_state()
  _, rows = feed.order.batch(0, 0)
  vectors = []
  for number in texts.texts[rows].reshape(-1):
    ids = texts.ids[int(number)] if number >= 0 else np.asarray([0, 2], np.int32)
    one = {"ids": ids[None, None], "weights": np.ones((1, 1), np.float32)}
    vectors.append(group.outputs(state.params, one)[0, 0])
  of_rows = np.stack(vectors).astype(np.float64).reshape(8, 3, -1)
  expected = []
  for size in (16, *schema.sizes):
    part = small.unit(of_rows[..., :size]) if schema.unit else of_rows[..., :size]
    expected.append(small.loss(part, texts.keys[rows], np.ones(8), texts.scores[rows], objective))
  _, metrics = group.train_step(state, feed(0))
  np.testing.assert_allclose(np.squeeze(metrics["loss"][0]), sum(one for one, _ in expected) / 8, rtol=1e-5)
  np.testing.assert_allclose(np.squeeze(metrics["accuracy"]), [expected[0][1], 8])
  np.testing.assert_allclose(np.squeeze(metrics["task_loss"]), [expected[0][0], 8], rtol=1e-5)


def test_a_batch_holds_every_text_once_and_its_place_finds_it():
  texts = small.texts(rows=21)
  feed = small.feed(texts, most=3, divisor=2)
  assert sorted(int(feed(step)["weights"].sum()) for step in range(3)) == [5, 8, 8]  # an epoch
  lengths, counts = feed.shapes.lengths, feed.shapes.counts
  assert list(lengths) == sorted(lengths, reverse=True) and [count % 2 for count in counts] == [0, 0, 0]
  shapes = set()
  for step in range(6):
    made = feed(step)
    shapes.add(tuple((name, leaf.shape) for name, leaf in sorted(made.items())))
    batch = {name: leaf[0] for name, leaf in made.items()}
    _, rows = feed.order.batch(0, step)
    given = {"weights": np.ones(len(rows)), "keys": texts.keys[rows], "scores": texts.scores[rows]}
    for name, of_rows in given.items():
      np.testing.assert_array_equal(batch[name][: len(rows)], of_rows)
      np.testing.assert_array_equal(batch[name][len(rows) :], -1 if name == "keys" else 0)
    joined = [ids for at in range(3) for ids in batch[batches.name_of("ids", at)]]
    slots = np.concatenate([batch[batches.name_of("slots", at)] for at in range(3)])
    for row, number in enumerate(rows):
      for side, text in enumerate(texts.texts[number]):
        place = batch["place"][3 * row + side]
        assert slots[place] == 3 * row + side
        expected = texts.ids[int(text)] if text >= 0 else []
        np.testing.assert_array_equal(joined[place][joined[place] != small.PAD], expected)
  assert len(shapes) == 1


def test_groups_are_as_short_as_the_texts_of_all_steps_allow():
  """One text of 20 tokens, seven of 5 and a row that lacks its second text, in batches of all four rows."""
  sizes = [20, 5, 5, 5, 5, 5, 5]
  ids = [np.full(size, 3, np.int32) for size in sizes]
  numbers = np.asarray([[0, 1], [2, 3], [4, 5], [6, -1]])
  table = batches.TextTable(ids, numbers, numbers.astype(np.int32), np.zeros(4, np.float32))
  assert table.sizes.tolist() == [[20, 5], [5, 5], [5, 5], [5, 0]]
  shapes = [
    small.feed(table, 4, most=most, divisor=divisor).shapes for most, divisor in ((2, 1), (3, 1), (2, 3))
  ]
  assert shapes == [((1, 7), (20, 8)), ((1, 6, 1), (20, 8, 4)), ((3, 9), (20, 8))]
