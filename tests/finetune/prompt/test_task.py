"""The problem of prompts. Run: python -m pytest tests/finetune/prompt/test_task.py"""

import dataclasses
import functools
import importlib
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from finetune.prompt import task as prompt
from finetune.prompt.data import Lengths, predict
from finetune.prompt.demonstrations import EvaluationSet, TrainingFeed, make_pool
from finetune.prompt.templates import TEMPLATES, PromptWriter
from finetune.search.examples import Examples
from finetune.search.program import Program, Runs
from pretrain.models import heads
from pretrain.optim import OptimizerSettings
from tests.finetune.prompt.prompt_case import Split, make_vocabulary
from tests.pretrain import drawn
from tests.pretrain.models import small_encoder
from tests.pretrain.models.small_encoder import IDS, KEYS, TOKENS, init_encoder

# One layer: what is tested stands behind the encoder.
CONFIG = dataclasses.replace(small_encoder.CONFIG, num_layers=1, hidden_size=16, mlp_size=16)
WORD_IDS = (40, 7, 23)
PAD = TOKENS.pad
BATCH = {
  "ids": IDS,
  "weights": np.float32([1, 1, 1, 0]),
  "mask_position": np.int32([3, 11, 0, 15]),
  "labels": np.int32([0, 2, 1, 1]),
}


def make_head(name):
  if name == "clm":
    init = functools.partial(heads.init_clm_head, CONFIG)
  else:
    key, size = jax.random.key(5), CONFIG.hidden_size
    init = functools.partial(heads.init_mlm_head, key, CONFIG, output_size=size)
  head = jax.jit(init)()
  return head | {"bias": drawn.normal(6, *head["bias"].shape)}


def make_problem(name, word_ids=WORD_IDS, **options):
  options = {"pad_id": PAD, "max_length": 16, "name": name} | options
  return prompt.make_problem(CONFIG, make_head(name), word_ids, **options)


@functools.cache
def make_encoder():
  return jax.jit(lambda: init_encoder(CONFIG))()


def make_params(problem):
  return {"encoder": make_encoder(), "heads": problem.init_heads(jax.random.key(0))}


@pytest.mark.parametrize(("name", "keys"), [("clm", None), ("mlm", KEYS)], ids=["clm", "mlm with dropout"])
def test_outputs_are_the_words_logits_of_the_whole_vocabulary_at_the_gap(name, keys):
  problem = make_problem(name)
  params = make_params(problem)

  @jax.jit
  def both(params):
    states, head = (
      small_encoder.run_encoder(params["encoder"], CONFIG, keys=keys)[1].last,
      params["heads"][name],
    )
    if name == "mlm":
      states = heads.apply_transform(head, CONFIG, states)
    full = states @ params["encoder"]["embeddings"]["token"]["embedding"].T + head["bias"]
    return full, problem.outputs(params, BATCH, keys)

  full, found = jax.device_get(both(params))
  expected = [[full[row, BATCH["mask_position"][row], i] for i in WORD_IDS] for row in range(4)]
  assert found.shape == (4, 3) and found.dtype == jnp.float32
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["clm", "mlm"])
def test_gradients_reach_the_encoder_the_token_table_and_the_head(name):
  problem = make_problem(name)

  def loss(params):
    return problem.loss(problem.outputs(params, BATCH, None), BATCH)[0]

  gradients = jax.device_get(jax.jit(jax.grad(loss))(make_params(problem)))
  norms = jax.tree.map(lambda leaf: float(np.abs(leaf).max()), gradients)
  assert all(norm > 0 for norm in jax.tree.leaves(norms))
  # Words that stand in no input are reached as output rows.
  absent = [i for i in WORD_IDS if i not in set(np.asarray(IDS).ravel())]
  table = gradients["encoder"]["embeddings"]["token"]["embedding"]
  assert absent and all(float(np.abs(table[i]).max()) > 0 for i in absent)
  bias = np.flatnonzero(gradients["heads"][name]["bias"])
  assert sorted(bias) == sorted(WORD_IDS)


def test_logits_of_the_vocabulary_are_never_computed():
  problem = make_problem("clm")
  params = make_params(problem)
  printed = str(jax.make_jaxpr(lambda params: problem.outputs(params, BATCH, None))(params))
  # 97 is a prime: the table [97, 16] and the bias [97] are there, nothing that ends in the vocabulary.
  assert "97,16]" in printed
  assert ",97]" not in printed


def test_the_last_layer_is_computed_at_the_gap_alone():
  config = dataclasses.replace(CONFIG, mlp_size=24)
  problem = prompt.make_problem(config, make_head("clm"), WORD_IDS, pad_id=PAD, max_length=16, name="clm")
  params = jax.eval_shape(
    lambda: {"encoder": init_encoder(config), "heads": problem.init_heads(jax.random.key(0))}
  )
  printed = str(jax.make_jaxpr(lambda params: problem.outputs(params, BATCH, None))(params))
  assert "4,1,24]" in printed and "4,16,24]" not in printed


def test_the_loss_is_the_mean_cross_entropy_over_the_words_of_rows_that_count():
  problem = make_problem("clm")
  logits = np.float32([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0], [3.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
  total, metrics = jax.jit(problem.loss)(logits, BATCH)
  expected = math.log(1 + math.e + math.exp(-0.5)) + math.log(3) + (math.log(math.e**2 + 2))
  assert float(total) == pytest.approx(expected, rel=1e-5)
  assert float(metrics["task_loss"][1]) == 3.0


def test_the_divergence_of_scores_is_0_at_the_target_and_that_of_the_paper_elsewhere():
  targets, weights = np.float32([0, 1, 5, np.nan]), np.float32([1, 1, 1, 0])
  polarity_loss = jax.jit(prompt.polarity_loss)
  right = np.float32([[50.0, -50.0], [math.log(0.8), math.log(0.2)], [-50.0, 50.0], [0.0, 0.0]])
  assert float(polarity_loss(right, targets, weights)) == pytest.approx(0.0, abs=1e-6)
  even = np.zeros((4, 2), np.float32)
  expected = math.log(2) + (math.log(2) + 0.8 * math.log(0.8) + 0.2 * math.log(0.2)) + math.log(2)
  assert float(polarity_loss(even, targets, weights)) == pytest.approx(expected, rel=1e-6)
  gradient = jax.jit(jax.grad(lambda logits: prompt.polarity_loss(logits, targets, weights)))(even)
  np.testing.assert_allclose(gradient, [[-0.5, 0.5], [-0.3, 0.3], [0.5, -0.5], [0.0, 0.0]], atol=1e-6)


def test_a_regression_trains_on_scores_and_predicts_them():
  problem = make_problem("clm", (7, 40), is_regression=True)
  batch = BATCH | {"labels": np.float32([0, 2, 5, 1])}
  logits = drawn.normal(3, 4, 2)
  expected = jax.jit(prompt.polarity_loss)(logits, batch["labels"], batch["weights"])
  assert float(jax.jit(problem.loss)(logits, batch)[0]) == float(expected)
  found = prompt.scores_of(np.array([[0.0, 0.0], [math.log(4), 0.0], [-900.0, 900.0]]))
  np.testing.assert_allclose(found, [[2.5], [1.0], [5.0]])


def test_the_language_modelling_head_of_a_checkpoint_is_found():
  rtd = {"kernel": 0, "bias": 0}
  clm, mlm = {"bias": 0}, {"dense": 0, "norm": 0, "bias": 0}
  assert prompt.lm_head({"heads": {"rtd": rtd, "clm": clm, "scl": {}}}, {}) == "clm"
  assert prompt.lm_head({"heads": {"mlm": mlm, "taco": {}}}, {}) == "mlm"


def test_the_recipes_named_are_those_whose_configs_train_such_a_head():
  root = pathlib.Path(__file__).resolve().parents[3] / "configs"
  objectives = {"clm": {"clm", "all_token"}, "mlm": {"mlm"}}
  seen = 0
  for path in [*root.glob("*_tiny.py"), root / "demo.py"]:
    recipe = path.stem.removesuffix("_tiny")
    config = importlib.import_module(f"configs.{path.stem}").get_config()
    on = {name for name in config.objectives if config.objectives[name].weight}
    for head, names in objectives.items():
      assert bool(on & names) == (recipe in prompt.RECIPES[head].split(", ")), (recipe, head)
    seen += 1
  assert seen >= 9


def test_predictions_are_averaged_over_samples_and_every_example_counts_once():
  # Two runs of 5 and 3 sequences-per-sample, two samples; an output is the id of the sequence's only token.
  def make_set(tokens):
    ids = [np.array([token], np.int32) for token in tokens]
    return EvaluationSet(Examples(ids, {"mask_position": np.zeros(len(ids), np.int32)}, {}), 2)

  def outputs_of(batch):
    shapes.append(batch["ids"].shape)
    return np.stack([batch["ids"][..., 0], -batch["ids"][..., 0]], axis=-1).astype(np.float32)

  shapes = []
  sets = [make_set([2, 4, 6, 8, 10, 12, 14, 16, 18, 20]), make_set([1, 2, 3, 5, 6, 7])]
  found = predict(outputs_of, sets, np.asarray, Lengths(3, 2, 4, 0))
  assert shapes == [(2, 4, 3)] * 3
  assert found[0].tolist() == [[7, -7], [9, -9], [11, -11], [13, -13], [15, -15]]
  assert found[1].tolist() == [[3, -3], [4, -4], [5, -5]]


def test_what_is_averaged_is_what_finish_makes_of_each_sequence():
  ids = [np.array([token], np.int32) for token in (1, 3)]
  sets = [EvaluationSet(Examples(ids, {}, {}), 2)]
  found = predict(lambda batch: batch["ids"].astype(np.float32), sets, np.square, Lengths(1, 2, 2, 0))
  assert found[0].tolist() == [[5.0]]


def test_runs_learn_their_own_training_sets(tmp_path):
  words = make_vocabulary(tmp_path)
  writer = PromptWriter(TEMPLATES["sst2"], words)
  train = Split(["a", "b", "c", "d"], None, np.array([0, 1, 0, 1], np.int32))
  turned = train._replace(labels=1 - np.asarray(train.labels))
  pools = {13: make_pool(writer, train, max_length=16), 21: make_pool(writer, turned, max_length=16)}
  pad_id = words.special_ids.pad
  config = dataclasses.replace(CONFIG, dropout=0.0, attention_dropout=0.0)
  options = {"name": "clm", "pad_id": pad_id, "max_length": 16}
  problem = prompt.make_problem(config, make_head("clm"), writer.word_ids, **options)
  rates, steps = np.full(2, 1e-2, np.float32), np.full(2, 80)
  runs = Runs(np.array([13, 21], np.int32), rates, steps, np.zeros(2, np.int64))
  settings = OptimizerSettings(learning_rate=0.0, total_steps=1)
  program = Program(problem, lambda key: init_encoder(config), settings, devices=jax.devices()[:1])
  group = program.group(runs)
  feed = TrainingFeed(pools, (13, 21), batch_size=4, max_length=16, pad_id=pad_id)
  state = group.init_state()
  for step in range(60):
    state, _ = group.train_step(state, feed(step))
  batch = feed(60)  # with demonstrations they have not seen together
  assert np.argmax(group.outputs(state.params, batch), axis=-1).tolist() == batch["labels"].tolist()
