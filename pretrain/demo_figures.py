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
from data.vocabulary import Vocabulary
from pretrain import sharding, source
from pretrain.checkpoint import load_params
from pretrain.feed import open_records
from pretrain.metrics import FILE_NAME
from pretrain.models import heads
from pretrain.run import Run, make_run, pad_rows

NUM_EXAMPLES = 10
TOKENS_BEFORE, TOKENS_AFTER = 6, 4  # context of an example


class Row(NamedTuple):
  """One line of the summary; the trivial answer needs no training on this text but counting."""

  name: str
  first: float | None  # before training; None: not measured then
  last: float
  trivial: float
  answer: str  # what the trivial answer is
  is_loss: bool  # in nats, the lower the better; else a fraction, the higher the better


class Example(NamedTuple):
  """A replaced token in its context."""

  text: str  # as the encoder read it, the replacement between >> and <<
  original: str
  replacement: str
  probability: float  # that the token was replaced, as the encoder says


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
  directory = source.records_directory(config)
  params, meta = load_params(workdir)
  first, last = heldout_metrics(pathlib.Path(workdir) / FILE_NAME, last_step=meta["step"])
  run = make_run(config, source.token_ids(directory))
  arrays = _look_at_heldout(run, params, directory)
  words = vocabulary.load(os.path.join(directory, "vocabulary"))
  unigram = np.load(os.path.join(directory, "unigram.npy"), allow_pickle=False)
  is_token = arrays["ids"] != run.recipe.tokens.pad
  is_replaced = arrays["ids"] != arrays["input_ids"]
  probability = arrays["probability_replaced"]
  unigram_loss, cls_gain = _unigram_cross_entropy(arrays, unigram, run)
  return Summary(
    step=meta["step"],
    checkpoint=os.path.join(workdir, "checkpoints", str(meta["step"])),
    rows=[*_loss_rows(first, last, unigram_loss, config), *_hit_rows(first, last, arrays, run)],
    mixture={
      name.removeprefix("mixture_weight_").replace("_", " "): (first[name], last[name])
      for name in last
      if name.startswith("mixture_weight_")
    },
    examples=_examples(arrays, words, run),
    blocks=int(is_token.any(axis=-1).sum()),
    masked=int(arrays["selected"].sum()),
    cls_gain=cls_gain,
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


def _unigram_cross_entropy(
  arrays: dict[str, np.ndarray], unigram: np.ndarray, run: Run
) -> tuple[float, float]:
  """Nats per masked token of the training frequencies, and by how much less if [CLS] is known to be first."""
  targets = arrays["ids"][arrays["selected"]]
  counts = unigram + 1.0  # a token that training never saw has a probability too
  surprise = -np.log(counts / counts.sum())[targets].mean()
  is_cls = targets == run.recipe.tokens.cls
  counts[run.recipe.tokens.cls] = 0.0
  informed = -np.log(counts / counts.sum(), where=counts > 0, out=np.zeros_like(counts))[targets]
  return float(surprise), float(surprise - np.where(is_cls, 0.0, informed).mean())


def _loss_rows(
  first: dict[str, float], last: dict[str, float], unigram_loss: float, config: ConfigDict
) -> list[Row]:
  rate, objectives = last["replace_rate"], config.objectives
  entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)) if 0 < rate < 1 else 0.0
  group = objectives.scl.group_size or config.train.batch_size
  frequencies = "token frequencies"
  several = [name for name in last if name.startswith(("generator_loss_layer_", "generator_loss_generator_"))]
  table = {
    name: (f"generator, {name.removeprefix('generator_loss_').replace('_', ' ')}", unigram_loss)
    for name in several
  } or {"generator_loss": ("generator", unigram_loss)}
  rows = [
    Row(label, first[name], last[name], trivial, frequencies, True)
    for name, (label, trivial) in table.items()
    if name in last
  ]
  others = {
    "rtd_loss": ("replaced token detection", float(entropy), f"always {rate:.1%}"),
    "clm_loss": ("corrective LM", unigram_loss, frequencies),
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


def _examples(arrays: dict[str, np.ndarray], words: Vocabulary, run: Run) -> list[Example]:
  """The first replaced token of each of the first blocks: not chosen by what the encoder says."""
  ids, inputs = arrays["ids"], arrays["input_ids"]
  special = run.recipe.tokens.special
  candidates = (ids != inputs) & ~np.isin(ids, special) & ~np.isin(inputs, special)
  candidates[:, :TOKENS_BEFORE] = False  # a context to the left shows what should stand there
  found = []
  for row in np.flatnonzero(candidates.any(axis=-1))[:NUM_EXAMPLES]:
    at = int(candidates[row].argmax())
    end = min(at + 1 + TOKENS_AFTER, int((ids[row] != run.recipe.tokens.pad).sum()))
    text = " ".join(
      [
        words.decode(inputs[row, at - TOKENS_BEFORE : at]),
        f">>{shown_piece(words, inputs[row, at])}<<",
        words.decode(inputs[row, at + 1 : end]),
      ]
    )
    original, replacement = (shown_piece(words, side[row, at]) for side in (ids, inputs))
    said = float(arrays["probability_replaced"][row, at])
    found.append(Example(text.strip(), original, replacement, said))
  return found


def shown_piece(words: Vocabulary, token_id: int) -> str:
  """A piece for people: 'token' begins a word, '-ing' continues one, ',' is itself."""
  piece = words.piece(int(token_id))
  if words.kind == "wordpiece":
    begins, letters = not piece.startswith("##"), piece.removeprefix("##")
  else:
    begins, letters = piece.startswith("▁"), piece.removeprefix("▁")
  return letters or piece if begins or not letters[:1].isalnum() else f"-{letters}"
