"""The numbers and examples of the demo's summary, from a checkpoint and the run's metrics file."""

import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from sklearn.metrics import roc_auc_score

from data import vocabulary
from data.errors import DataError
from pretrain import prepared, sharding
from pretrain.batches import open_records
from pretrain.checkpoint import load_params
from pretrain.demo.examples import Example, find_examples
from pretrain.metrics import FILE_NAME
from pretrain.models import heads
from pretrain.run import Run, make_run, pad_rows


class Row(NamedTuple):
  """One line of the summary; the trivial answer needs no training on this text but counting."""

  name: str
  first: float | None  # before training; None: not measured then
  last: float
  trivial: float
  answer: str  # what the trivial answer is
  is_loss: bool  # in nats, the lower the better; else a fraction, the higher the better


class FrequencyAnswers(NamedTuple):
  """Nats per token of answering with the training frequencies of tokens."""

  masked: float  # at masked positions
  replaced: float  # at those that the generator got wrong
  corrected: float  # at masked positions, with the copy mechanism at the rate of replacement everywhere
  cls_gain: float  # by how much `masked` falls if it is known that [CLS] is first


class Summary(NamedTuple):
  """What the demo reports of a finished run."""

  step: int
  checkpoint: str
  rows: list[Row]
  mixture: dict[str, tuple[float, float]]  # {head: mean weight at the start, at the end}
  examples: list[Example]
  blocks: int  # held-out rows all figures are over
  masked: int  # masked tokens in them
  cls_gain: float  # nats of the unigram answer that knowing where [CLS] stands is worth
  said_replaced: tuple[float, float]  # mean probability the encoder gives replaced and original tokens
  replace_rate: float


def summarise(config: ConfigDict, workdir: str) -> Summary:
  """Reads a finished run.

  Args:
    config: of the run.
    workdir: its newest checkpoint and its `metrics.jsonl` are read.

  Returns:
    Summary.

  Raises:
    DataError: checkpoint, metrics or records are not there.
  """
  directory = prepared.records_directory(config)
  params, meta = load_params(workdir)
  first, last = heldout_metrics(pathlib.Path(workdir) / FILE_NAME, last_step=meta["step"])
  run = make_run(config, prepared.token_ids(directory))
  arrays = _look_at_heldout(run, params, directory)
  words = vocabulary.load(os.path.join(directory, "vocabulary"))
  unigram = np.load(os.path.join(directory, "unigram.npy"), allow_pickle=False)
  is_token = arrays["ids"] != run.recipe.tokens.pad
  is_replaced = arrays["ids"] != arrays["input_ids"]
  probability = arrays["probability_replaced"]
  frequencies = frequency_answers(arrays, unigram, run)
  return Summary(
    step=meta["step"],
    checkpoint=os.path.join(workdir, "checkpoints", str(meta["step"])),
    rows=[*_loss_rows(first, last, frequencies, config), *_hit_rows(first, last, arrays, run)],
    mixture={
      name.removeprefix("mixture_weight_").replace("_", " "): (first[name], last[name])
      for name in last
      if name.startswith("mixture_weight_")
    },
    examples=find_examples(arrays, words, run.recipe.tokens),
    blocks=int(is_token.any(axis=-1).sum()),
    masked=int(arrays["selected"].sum()),
    cls_gain=frequencies.cls_gain,
    said_replaced=(
      float(probability[is_replaced].mean()),
      float(probability[is_token & ~is_replaced].mean()),
    ),
    replace_rate=last["replace_rate"],
  )


def heldout_metrics(path: pathlib.Path, *, last_step: int) -> tuple[dict[str, float], dict[str, float]]:
  """The held-out metrics of step 0 and of the last step, without 'eval/'.

  Raises:
    DataError: the file lacks one of them.
  """
  found: dict[int, dict[str, Any]] = {}
  if path.exists():
    for line in path.read_text(encoding="utf-8").splitlines():
      values = json.loads(line)
      means = {name[5:]: value for name, value in values.items() if name.startswith("eval/")}
      found |= {values["step"]: means} if means else {}
  missing = [step for step in (0, last_step) if step not in found]
  if missing:
    raise DataError(
      f"{path} has no held-out metrics of step {missing[0]}, with which the summary compares; remove "
      f"{path.parent} and start the demo again"
    )
  return found[0], found[last_step]


def _look_at_heldout(run: Run, params: dict, directory: str) -> dict[str, np.ndarray]:
  """[rows, length] arrays over the blocks of the evaluation, with its masks and samples."""
  recipe, rows = run.recipe, run.config.train.batch_size
  _, heldout = open_records(run.config, directory)

  def describe_heldout(params: dict, ids: jax.Array, index: jax.Array) -> dict[str, jax.Array]:
    batch = run.eval_batch_of(ids, index, jnp.float32(1.0))
    view, _ = recipe.view(params, batch, train=False)
    logits = heads.apply_rtd_head(view.heads["rtd"], recipe.encoder, view.hidden)
    return {
      "ids": ids,
      "input_ids": view.corrupted.input_ids,
      "selected": view.corrupted.masking.selected,
      "probability_replaced": jax.nn.sigmoid(-logits),
    }

  parts = []
  with jax.set_mesh(run.mesh):
    function = jax.jit(describe_heldout, out_shardings=sharding.replicated(run.mesh))
    number = min(len(heldout), rows * run.config.train.eval_batches)
    for index in range(-(-number // rows)):
      ids = heldout.rows(index * rows, min((index + 1) * rows, number))
      batch = sharding.to_global(run.mesh, pad_rows(ids, rows, pad_id=recipe.tokens.pad))
      parts.append(jax.device_get(function(params, batch, jnp.int32(index))))
  return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def frequency_answers(arrays: dict[str, np.ndarray], unigram: np.ndarray, run: Run) -> FrequencyAnswers:
  """What counting the training text is worth on the held-out masked tokens.

  Args:
    arrays: 'ids', 'input_ids' [rows, length] int and 'selected' [rows, length] bool.
    unigram: [vocab] counts of the training tokens.
    run: for the id of [CLS].

  Returns:
    FrequencyAnswers.
  """
  selected, ids = arrays["selected"], arrays["ids"]
  counts = unigram + 1.0  # a token that training never saw has a probability too
  log_probs = np.log(counts / counts.sum())[ids[selected]]
  is_replaced = (arrays["input_ids"] != ids)[selected]
  rate = (arrays["input_ids"] != ids).sum() / (ids != run.recipe.tokens.pad).sum()
  generated = log_probs + np.log(rate) if rate else np.full_like(log_probs, -np.inf)
  corrected = np.where(is_replaced, generated, np.logaddexp(np.log1p(-rate), generated))
  cls = run.recipe.tokens.cls
  without_cls = log_probs - np.log1p(-counts[cls] / counts.sum())
  informed = np.where(ids[selected] == cls, 0.0, without_cls)
  return FrequencyAnswers(
    masked=float(-log_probs.mean()),
    replaced=float(-log_probs[is_replaced].mean()) if rate else 0.0,
    corrected=float(-corrected.mean()),
    cls_gain=float((informed - log_probs).mean()),
  )


def _loss_rows(
  first: dict[str, float], last: dict[str, float], frequencies: FrequencyAnswers, config: ConfigDict
) -> list[Row]:
  rate, objectives = last["replace_rate"], config.objectives
  entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)) if 0 < rate < 1 else 0.0
  group = objectives.scl.group_size or config.train.batch_size
  counting = "token frequencies"
  several = [name for name in last if name.startswith(("generator_loss_layer_", "generator_loss_generator_"))]
  table = {
    name: (f"generator, {name.removeprefix('generator_loss_').replace('_', ' ')}", frequencies.masked)
    for name in several
  } or {"generator_loss": ("generator", frequencies.masked)}
  rows = [
    Row(label, first[name], last[name], trivial, counting, True)
    for name, (label, trivial) in table.items()
    if name in last
  ]
  others = {
    "rtd_loss": ("replaced token detection", float(entropy), f"always {rate:.1%}"),
    "clm_cross_entropy_replaced": ("corrective LM, replaced tokens", frequencies.replaced, counting),
  }
  if objectives.clm.copy and objectives.clm.form == "mixture":  # else its loss is another
    others["clm_loss"] = ("corrective LM, with copying", frequencies.corrected, "the two above")
  others |= {
    "scl_loss": (
      f"sequence contrast, 1 of {2 * group - 1}",
      float(np.log(2 * group - 1)),
      "guessing",
    ),
    "taco_loss": (
      f"token alignment (TACO), 1 of {objectives.taco.num_negatives + 1}",
      float(np.log(objectives.taco.num_negatives + 1)),
      "guessing",
    ),
  }
  return rows + [
    Row(label, first[name], last[name], trivial, answer, True)
    for name, (label, trivial, answer) in others.items()
    if name in last
  ]


def _hit_rows(
  first: dict[str, float], last: dict[str, float], arrays: dict[str, np.ndarray], run: Run
) -> list[Row]:
  ids, replaced = arrays["ids"], arrays["ids"] != arrays["input_ids"]
  group = run.config.objectives.scl.group_size or run.config.train.batch_size
  always = "always 'original'"
  table = {
    "rtd_accuracy_replaced": ("replaced tokens recognised", 0.0, always),
    "rtd_accuracy_original": ("original tokens recognised", 1.0, always),
    "clm_lm_accuracy_replaced": (
      "replaced tokens restored",
      _top_share(ids[replaced]),
      "commonest token",
    ),
    # An untrained network tells most blocks apart: chance would be too low a bar.
    "scl_accuracy": (
      f"crop found, 1 of {2 * group - 1}",
      first.get("scl_accuracy", 0.0),
      "untrained net",
    ),
  }
  rows = [
    Row(label, first.get(name), last[name], trivial, answer, False)
    for name, (label, trivial, answer) in table.items()
    if name in last
  ]
  is_word = ~np.isin(ids, run.recipe.tokens.special)
  truth = replaced[is_word]
  if truth.any() and not truth.all():
    area = float(roc_auc_score(truth, arrays["probability_replaced"][is_word]))
    rows.insert(2, Row("replaced ranked above original", None, area, 0.5, "guessing", False))
  return rows


def _top_share(tokens: np.ndarray) -> float:
  return float(np.bincount(tokens).max() / len(tokens)) if len(tokens) else 0.0
