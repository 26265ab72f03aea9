"""The problem of prompts, few-shot sets as prompts, their scores and their table."""

import dataclasses
import functools
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import finetune_prompt
from data.errors import ConfigError
from data.glue.tasks import Split
from finetune import validate
from finetune.papers.protocols import Cell
from finetune.prompt import data as prompt_data
from finetune.prompt import search as prompt
from finetune.prompt import search as prompt_report
from finetune.prompt.data import Lengths, predict
from finetune.prompt.search import TaskScores
from finetune.prompt.templates import TEMPLATES, EvaluationSet, PromptWriter
from finetune.search.examples import Examples
from finetune.search.results import Evaluation, Record
from pretrain.models import heads
from tests.finetune.prompt.prompt_case import make_vocabulary
from tests.pretrain import drawn
from tests.pretrain.models import small_encoder
from tests.pretrain.models.small_encoder import IDS, KEYS, TOKENS, init_encoder

# One layer: what is tested stands behind the encoder. No other array has a side of 24 or 97.
CONFIG = dataclasses.replace(small_encoder.CONFIG, num_layers=1, hidden_size=16, mlp_size=24)
WORD_IDS = (40, 7, 23)
BATCH = {
  "ids": IDS,
  "weights": np.float32([1, 1, 1, 0]),
  "mask_position": np.int32([3, 11, 0, 15]),
  "labels": np.int32([0, 2, 1, 1]),
}


def make_head(name):
  if name == "clm":
    init = functools.partial(heads.init_clm_head, jax.random.key(5), CONFIG)
  else:
    key, size = jax.random.key(5), CONFIG.hidden_size
    init = functools.partial(heads.init_mlm_head, key, CONFIG, output_size=size)
  head = jax.jit(init)()
  return head | {"bias": drawn.normal(6, *head["bias"].shape)}


def make_problem(name, word_ids=WORD_IDS, **options):
  options = {"pad_id": TOKENS.pad, "max_length": 16, "name": name} | options
  return prompt.make_problem(CONFIG, make_head(name), word_ids, **options)


@functools.cache
def make_encoder():
  return jax.jit(lambda: init_encoder(CONFIG))()


def make_params(problem):
  return {"encoder": make_encoder(), "heads": problem.init_heads(jax.random.key(0))}


@pytest.mark.parametrize(("name", "keys"), [("clm", None), ("mlm", KEYS)], ids=["clm", "mlm with dropout"])
def test_outputs_are_the_words_logits_of_the_whole_vocabulary_at_the_gap(name, keys):
  """And gradients reach the encoder, the token table (as output rows too) and the head."""
  problem = make_problem(name)
  params = make_params(problem)

  def loss(params):
    found = problem.outputs(params, BATCH, keys)
    return problem.loss(found, BATCH)[0], found

  @jax.jit
  def both(params):
    states = small_encoder.run_encoder(params["encoder"], CONFIG, keys=keys)[1].last
    head = params["heads"][name]
    if name == "mlm":
      states = heads.apply_transform(head, CONFIG, states)
    full = states @ params["encoder"]["embeddings"]["token"]["embedding"].T + head["bias"]
    return full, jax.value_and_grad(loss, has_aux=True)(params)

  full, ((_, found), gradients) = jax.device_get(both(params))
  expected = [[full[row, BATCH["mask_position"][row], i] for i in WORD_IDS] for row in range(4)]
  assert found.shape == (4, 3) and found.dtype == jnp.float32
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  norms = jax.tree.map(lambda leaf: float(np.abs(leaf).max()), gradients)
  assert all(norm > 0 for norm in jax.tree.leaves(norms))
  absent = [i for i in WORD_IDS if i not in set(np.asarray(IDS).ravel())]
  table = gradients["encoder"]["embeddings"]["token"]["embedding"]
  assert absent and all(float(np.abs(table[i]).max()) > 0 for i in absent)
  assert sorted(np.flatnonzero(gradients["heads"][name]["bias"])) == sorted(WORD_IDS)


def test_the_last_layer_and_logits_are_computed_where_they_are_read_alone():
  problem = make_problem("clm")
  params = jax.eval_shape(lambda: make_params(problem))
  printed = str(jax.make_jaxpr(lambda params: problem.outputs(params, BATCH, None))(params))
  assert "4,1,24]" in printed and "4,16,24]" not in printed
  # The table [97, 16] and the bias [97] are there, nothing that ends in the vocabulary.
  assert "97,16]" in printed and ",97]" not in printed


def test_the_loss_is_the_mean_cross_entropy_over_the_words_of_rows_that_count():
  problem = make_problem("clm")
  logits = np.float32([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0], [3.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
  total, metrics = jax.jit(problem.loss)(logits, BATCH)
  expected = math.log(1 + math.e + math.exp(-0.5)) + math.log(3) + (math.log(math.e**2 + 2))
  assert float(total) == pytest.approx(expected, rel=1e-5)
  assert [float(value) for value in metrics["task_loss"]] == [float(total), 3.0]


def test_a_regression_trains_on_the_divergence_of_the_paper_and_predicts_scores():
  targets, weights = np.float32([0, 1, 5, np.nan]), np.float32([1, 1, 1, 0])
  polarity_loss = jax.jit(prompt.polarity_loss)
  right = np.float32([[50.0, -50.0], [math.log(0.8), math.log(0.2)], [-50.0, 50.0], [0.0, 0.0]])
  assert float(polarity_loss(right, targets, weights)) == pytest.approx(0.0, abs=1e-6)
  even = np.zeros((4, 2), np.float32)
  expected = math.log(2) + (math.log(2) + 0.8 * math.log(0.8) + 0.2 * math.log(0.2)) + math.log(2)
  assert float(polarity_loss(even, targets, weights)) == pytest.approx(expected, rel=1e-6)
  gradient = jax.jit(jax.grad(lambda logits: prompt.polarity_loss(logits, targets, weights)))(even)
  np.testing.assert_allclose(gradient, [[-0.5, 0.5], [-0.3, 0.3], [0.5, -0.5], [0.0, 0.0]], atol=1e-6)
  problem = make_problem("clm", (7, 40), is_regression=True)
  batch, logits = BATCH | {"labels": np.float32([0, 2, 5, 1])}, drawn.normal(3, 4, 2)
  expected = polarity_loss(logits, batch["labels"], batch["weights"])
  assert float(jax.jit(problem.loss)(logits, batch)[0]) == float(expected)
  found = prompt_data.scores_of(np.array([[0.0, 0.0], [math.log(4), 0.0], [-900.0, 900.0]]))
  np.testing.assert_allclose(found, [[2.5], [1.0], [5.0]])


def test_the_language_modelling_head_of_a_checkpoint_is_found():
  rtd = {"kernel": 0, "bias": 0}
  clm, mlm = {"bias": 0}, {"dense": 0, "norm": 0, "bias": 0}
  assert prompt.lm_head({"heads": {"rtd": rtd, "clm": clm, "scl": {}}}, {}) == "clm"
  assert prompt.lm_head({"heads": {"mlm": mlm, "taco": {}}}, {}) == "mlm"
  with pytest.raises(ConfigError, match="'amos_base' has no language-modelling head"):
    prompt.lm_head({"heads": {"rtd": rtd}}, {"config": {"recipe": "amos_base"}})


PAPER = pathlib.Path(__file__).resolve().parents[4] / "shared" / "papers" / "coco_lm.txt"


def test_both_halves_of_mnli_are_tested(tmp_path, monkeypatch):
  writer = PromptWriter(TEMPLATES["mnli"], make_vocabulary(tmp_path))
  labels = np.array([0, 1, 2, 0, 1, 2], np.int32)

  def split(labels):
    texts = [chr(97 + n) for n in range(len(labels))]
    return Split(texts, texts, labels, texts, 0, "made", is_official=True)

  monkeypatch.setattr(prompt_data.kshot, "read", lambda *_, **__: (split(labels), split(labels)))
  monkeypatch.setattr(prompt_data.glue, "available", lambda *_: ("dev_matched", "dev_mismatched"))
  both = [split(np.array([1, 1, 0], np.int32)), split(np.array([1, 0, 2], np.int32))]
  monkeypatch.setattr(prompt_data.glue, "read_all", lambda *_, **__: both)
  config: Any = finetune_prompt.get_config()
  assert validate.task_names({"kind": config.kind, "tasks": config.tasks}) == ["mnli"]
  assert config.prompt.splits == (13, 21, 42, 87, 100)
  config.prompt.directory, config.prompt.splits = "draws", (13,)
  data = prompt_data.load("mnli", writer, config, Lengths(40, 2, 4, 0), download=False)
  assert data.is_official and data.metric == "accuracy" and list(data.tests) == ["", "_mm"]

  def always_entailment(batch):
    return np.broadcast_to(np.array([0.0, 1.0, 0.0], np.float32), (len(batch["ids"]), 3))

  found = data.test(always_entailment, 13)
  assert found == {"accuracy": pytest.approx(2 / 3), "accuracy_mm": pytest.approx(1 / 3)}
  broken = data.test(lambda batch: always_entailment(batch) * np.nan, 13)
  assert broken == {"accuracy": 0.0, "accuracy_mm": 0.0}  # a run that diverged learned nothing


def test_runs_are_judged_by_the_metrics_of_lm_bff():
  metrics = {task: prompt_data.PromptData(task, *[None] * 8).metric for task in TEMPLATES}
  others = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
  assert metrics == dict.fromkeys(TEMPLATES, "accuracy") | others


def test_predictions_are_averaged_over_samples_and_every_example_counts_once():
  """Five examples, two samples; an output is the id of the sequence's only token."""

  def make_set(tokens):
    ids = [np.array([token], np.int32) for token in tokens]
    return EvaluationSet(Examples(ids, {"mask_position": np.zeros(len(ids), np.int32)}, {}), 2)

  def outputs_of(batch):
    shapes.append(batch["ids"].shape)
    return np.stack([batch["ids"][..., 0], -batch["ids"][..., 0]], axis=-1).astype(np.float32)

  shapes = []
  given = make_set([2, 4, 6, 8, 10, 12, 14, 16, 18, 20])
  found = predict(outputs_of, given, np.asarray, Lengths(3, 2, 4, 0))
  assert shapes == [(4, 3)] * 3
  assert found.tolist() == [[7, -7], [9, -9], [11, -11], [13, -13], [15, -15]]
  # What is averaged is what `finish` makes of each sequence.
  found = predict(outputs_of, given, np.square, Lengths(3, 2, 4, 0))
  assert found[:2].tolist() == [[(4 + 144) / 2] * 2, [(16 + 196) / 2] * 2]


def scores(task, tests, *, has_test=True, is_official=True):
  def records(every):
    return [
      Record(task, Cell(2, 1e-5, num_steps=9), "accuracy", {13 + number: [Evaluation(9, 1.0, metrics)]})
      for number, metrics in enumerate(every)
    ]

  chosen = records([dict.fromkeys(tests[0], 0.5)] * len(tests))
  return TaskScores(chosen, records(tests) if has_test else [], is_official)


def test_the_paper_stands_beside_mnli():
  made = prompt_report.make_report(
    "model",
    [
      scores("mnli", [{"accuracy": 0.6, "accuracy_mm": 0.5}, {"accuracy": 0.7, "accuracy_mm": 0.5}]),
      scores("rte", [{"accuracy": 0.25}], is_official=False),
      scores("snli", [{"accuracy": 0.75}], has_test=False, is_official=False),
    ],
  )
  table, chosen = (
    [[column.show(row) for column in shown.columns] for row in shown.rows] for shown in made.tables
  )
  base = [column.header for column in made.columns].index("COCO-LM base++")
  assert table[0][:3] == ["MNLI-m", "accuracy", "65.0 (5.0)"] and table[0][base] == "66.5 (2.1)"
  assert table[1][:3] == ["MNLI-mm", "accuracy", "50.0 (0.0)"] and table[1][base] == "68.0 (2.3)"
  assert [row[0] for row in table[2:]] == ["RTE*", "SNLI**"] and table[2][base] == ""
  assert [row[1] for row in chosen] == ["13", "14", "13", "13"]
  assert [row[-2:] for row in chosen] == [["50.0", "60.0"], ["50.0", "70.0"], ["50.0", "25.0"], ["50.0", "-"]]
  assert "COCO-LM table 4" in " ".join(made.notes) and len(made.notes) == 4


@pytest.mark.skipif(not PAPER.is_file(), reason="../shared/papers, the papers' text, is not here")
def test_the_papers_rows_are_those_of_its_table():
  rows = PAPER.read_text().replace("<sub>", " ").replace("</sub>", "").replace("Base", "base")
  rows = rows.replace("Large", "large").split("<table")
  (table,) = [row for row in rows if "Table 4: Few-shot prompt-based" in row]
  for name, given in prompt_report.REFERENCES.items():
    after = table.split(f"<td>{name}</td>")[1]
    cells = [part.split("</td>")[0] for part in after.split("<td>")[1:3]]
    assert cells == [f"{mean} ({std})" for mean, std in given.values()]
