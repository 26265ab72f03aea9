"""The embedding stage's batches, its losses by their definitions, and however a batch is divided."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune.embedding import problem
from finetune.embedding.load import TextTable
from finetune.embedding.problem import StageObjective, _loss
from finetune.search.train import Hyper
from pretrain.embed.schema import EmbeddingSchema
from tests.finetune import small_task
from tests.finetune.embedding import small

STEPS, HYPER = 3, Hyper(0, 3e-3, 12, 2)
BOUND = {"rtol": 1e-5, "atol": 1e-6}
MATRYOSHKA = EmbeddingSchema("mean", True, sizes=(8, 4))


def _trained(objective, schema, *, most=1, divisor=1, microbatches=1, devices=1):
  feed = small.feed(small.texts(sides=2 if objective.kind != "ranking" else 3), most=most, divisor=divisor)
  trainer = small.trainer(
    len(feed.shapes.counts),
    objective=objective,
    schema=schema,
    microbatches=microbatches,
    dropout=0.1,
    devices=jax.devices()[:devices],
  )
  state, metrics = small_task.trained(trainer, HYPER, feed, STEPS)
  figures = [[float(of_step[name][0]) for name in ("loss", "grad_norm")] for of_step in metrics]
  return np.asarray(figures), jax.device_get(state.params)


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


def _expected(vectors, rows, texts, objective, schema) -> tuple[float, float, float]:
  """The loss of all sizes, and the loss and hits of whole vectors [texts, width]."""
  of_rows, found = np.asarray(vectors, np.float64).reshape(len(rows), 3, -1), []
  for size in (of_rows.shape[-1], *schema.sizes):
    part = small.unit(of_rows[..., :size]) if schema.unit else of_rows[..., :size]
    given = texts.keys[rows], np.ones(len(rows)), texts.scores[rows], objective
    found.append(small.loss(part, *given))
  return sum(loss for loss, _ in found), *found[0]


def test_the_loss_is_that_of_the_texts_one_by_one():
  """Each text encoded alone, without padding; then the definition of the loss, for each size of vectors."""
  texts = small.texts()
  feed = small.feed(texts, most=3)
  options = {"objective": BOTH_WAYS, "schema": MATRYOSHKA}
  trainer, vectors = small.trainer(3, devices=jax.devices()[:1], **options), []
  params = trainer.init_state(HYPER).params
  _, rows = feed.order.batch(0, 0)
  for number in texts.texts[rows].reshape(-1):
    ids = texts.ids[int(number)] if number >= 0 else np.asarray([0, 2], np.int32)
    vectors.append(trainer.outputs(params, {"ids": ids[None], "weights": np.ones(1, np.float32)})[0])
  total, whole, hits = _expected(vectors, rows, texts, BOTH_WAYS, MATRYOSHKA)
  _, (metrics,) = small_task.trained(trainer, HYPER, feed, 1)
  np.testing.assert_allclose(metrics["loss"][0], total / 8, rtol=1e-5)
  np.testing.assert_allclose(metrics["accuracy"], [hits, 8])
  np.testing.assert_allclose(metrics["task_loss"], [whole, 8], rtol=1e-5)


def test_vectors_keep_their_lengths_and_every_size_counts_as_the_schema_says():
  texts = small.texts()
  feed, random = small.feed(texts, most=3), np.random.default_rng(0)
  batch, (_, rows) = feed(0), feed.order.batch(0, 0)
  groups = [random.normal(size=(count, 4)).astype(np.float32) for count in feed.shapes.counts]
  in_order = np.concatenate(groups)[batch["place"]]
  for kind, both_ways, unit, sizes in (
    ("ranking", False, False, ()), ("ranking", True, True, (2, 1)), ("cosent", False, False, (3,))
  ):  # fmt: skip
    objective, schema = StageObjective(kind, 0.5, both_ways), EmbeddingSchema("mean", unit, sizes=sizes)
    made = problem.make_problem(small.CONFIG, schema, objective, pad_id=small.PAD, groups=3, microbatches=1)
    loss, _ = made.loss(list(map(jnp.asarray, groups)), batch)
    total, *_ = _expected(in_order, rows, texts, objective, schema)
    np.testing.assert_allclose(loss, total, rtol=1e-5)


def test_a_batch_holds_every_text_once_and_its_place_finds_it():
  texts = small.texts(rows=21)
  feed = small.feed(texts, most=3, divisor=2)
  assert sorted(int(feed(step)["weights"].sum()) for step in range(3)) == [5, 8, 8]  # an epoch
  lengths, counts = feed.shapes.lengths, feed.shapes.counts
  assert list(lengths) == sorted(lengths, reverse=True) and [count % 2 for count in counts] == [0, 0, 0]
  shapes = set()
  for step in range(6):
    batch = feed(step)
    shapes.add(tuple((name, leaf.shape) for name, leaf in sorted(batch.items())))
    _, rows = feed.order.batch(0, step)
    given = {"weights": np.ones(len(rows)), "keys": texts.keys[rows], "scores": texts.scores[rows]}
    for name, of_rows in given.items():
      np.testing.assert_array_equal(batch[name][: len(rows)], of_rows)
      np.testing.assert_array_equal(batch[name][len(rows) :], -1 if name == "keys" else 0)
    joined = [ids for at in range(3) for ids in batch[problem.name_of("ids", at)]]
    slots = np.concatenate([batch[problem.name_of("slots", at)] for at in range(3)])
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
  table = TextTable(ids, numbers, numbers.astype(np.int32), np.zeros(4, np.float32))
  assert table.sizes.tolist() == [[20, 5], [5, 5], [5, 5], [5, 0]]
  shapes = [
    small.feed(table, 4, most=most, divisor=divisor).shapes for most, divisor in ((2, 1), (3, 1), (2, 3))
  ]
  assert shapes == [((1, 7), (20, 8)), ((1, 6, 1), (20, 8, 4)), ((3, 9), (20, 8))]


# Rows 0 and 1 have one positive, rows 1 and 2 one query; row 3 has one negative less; row 4 is padding. The
# second negative of row 0 is the positive of row 2.
KEYS = np.asarray([[0, 9, 20, 5], [1, 9, 21, 22], [1, 5, 23, 24], [3, 6, 25, -1], [-1, -1, -1, -1]], np.int32)
WEIGHTS = np.asarray([1, 1, 1, 1, 0], np.float32)
SCORES = np.asarray([0.1, 0.9, 0.5, 0.5, 0.0], np.float32)
# (objective, sides). A cosine has no temperature.
CASES = [
  (StageObjective("ranking", 0.5, False), 4),
  (StageObjective("ranking", 0.7, True), 4),
  (StageObjective("cosent", 0.3, False), 2),
  (StageObjective("cosine", 0.3, False), 2),
]


def _ours(texts, objective, *, keys=KEYS, weights=WEIGHTS, scores=SCORES):
  fields = {"keys": jnp.asarray(keys), "weights": jnp.asarray(weights), "scores": jnp.asarray(scores)}
  return _loss(texts, fields, objective, device=0, devices=1)


def _differences(function, texts: np.ndarray, step: float = 1e-5) -> np.ndarray:
  """The gradient by central differences."""
  made = np.zeros_like(texts)
  for at in np.ndindex(texts.shape):
    sides = [texts.copy(), texts.copy()]
    for side, sign in zip(sides, (1, -1)):
      side[at] += sign * step
    made[at] = (function(sides[0]) - function(sides[1])) / (2 * step)
  return made


@pytest.mark.parametrize(("objective", "sides"), CASES, ids=lambda case: str(getattr(case, "kind", case)))
def test_values_and_gradients_are_those_of_the_definition(objective, sides):
  texts, keys = np.random.default_rng(1).normal(size=(5, sides, 3)), KEYS[:, :sides]

  def expected(vectors):
    return small.loss(vectors, keys, WEIGHTS, SCORES, objective)

  def ours(vectors):
    return _ours(vectors, objective, keys=keys)

  (value, metrics), gradient = jax.jit(jax.value_and_grad(ours, has_aux=True))(
    jnp.asarray(texts, jnp.float32)
  )
  total, hits = expected(texts)
  np.testing.assert_allclose(value, total, rtol=1e-5)
  found = {name: tuple(map(float, pair)) for name, pair in metrics.items()}
  accuracy = {"accuracy": (hits, 4.0)} if objective.kind == "ranking" else {}
  assert found == {"task_loss": (pytest.approx(total, rel=1e-5), 4.0), **accuracy} and 0 <= hits < 4
  slopes = _differences(lambda vectors: expected(vectors)[0], texts)
  np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-5)
  assert not np.any(gradient[4]) and (sides == 2 or not np.any(gradient[3, 3]))
  assert np.all(np.any(gradient[:4, :2], axis=-1))


def test_a_row_whose_only_rivals_are_known_answers_costs_exactly_nothing():
  """Row 1 has the positive of one other row and the query of the second, so both are its answers."""
  texts = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4)), jnp.float32)
  for both_ways in (False, True):
    given = {"keys": KEYS[:3, :2], "weights": np.float32([0, 1, 0]), "scores": SCORES[:3]}
    loss = functools.partial(_ours, objective=StageObjective("ranking", 0.1, both_ways), **given)
    (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(texts)
    assert value == 0 and not np.any(gradient)
  cosent = problem.cosent_loss(
    *map(jnp.asarray, ([0.2, 0.6, 0.6], [3.0, 1.0, 1.0], [1.0, 1, 0])), temperature=0.1
  )
  np.testing.assert_allclose(cosent, math.log(1 + math.exp(4)), rtol=1e-6)


def test_many_anchors_are_compared_block_by_block(monkeypatch):
  texts, rows = jnp.asarray(np.random.default_rng(2).normal(size=(8, 2, 4)), jnp.float32), np.arange(16)
  given = {"keys": rows.reshape(8, 2), "weights": np.ones(8, np.float32), "scores": np.zeros(8, np.float32)}
  compared = functools.partial(_ours, objective=StageObjective("ranking", 0.1, True), **given)
  whole = jax.value_and_grad(compared, has_aux=True)(texts)
  monkeypatch.setattr(problem, "ANCHORS", 2)
  assert "scan" in str(jax.make_jaxpr(compared)(texts))
  blocks = jax.value_and_grad(compared, has_aux=True)(texts)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), blocks, whole)


def test_a_batch_of_fewer_rows_has_its_longest_texts_in_the_places_of_the_longest():
  ids = [np.arange(size, dtype=np.int32) for size in (9, 3, 5)]
  numbers = np.arange(3)[:, None]
  table = TextTable(ids, numbers, numbers.astype(np.int32), np.zeros(3, np.float32))
  order = problem.whole_order(3, 2, 1)  # batches of two rows and of one, each row alone in some epoch
  found = problem.layout(table, order, range(9), epochs=9, most=2, multiple=1, divisor=1)
  assert found == problem.BatchLayout((1, 1), (9, 5))
