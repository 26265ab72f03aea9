"""The last step of an export: a fresh process loads what was written and must compute what we compute.

Here the reference is made: real sentences, their ids by our vocabulary, and hidden states and logits by the
JAX encoder in float32. `torch_check` is the other side.
"""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from data.errors import DataError
from data.vocabulary import Vocabulary
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.config import EncoderConfig
from pretrain.ops.vocab.vocab_cross_entropy import vocab_logits

SENTENCES = (
  "The committee will publish its report on Thursday.",
  "No.",
  "Binding of the ligand (IC50 = 3.2 nM) was abolished by the R175H mutation, as shown in Fig. 2b.",
  "Où est passée la clé d'Éloïse? Sie liegt auf dem Küchentisch — sagt 健太 😀.",
  "  The lessee shall, at its own expense, keep the premises in good repair;   see § 4(a)–(c).  ",
  "It's 9 o'clock, and they'd rather not wait.",
  "A dull, overlong film that even its fine cast cannot save.",
  "What a wonderful evening!",
  "Shares fell 4.5% to $12.30 after the announcement.",
  "return x[0] if x else None",
)


class Case(NamedTuple):
  """One batch: texts or pairs of texts, and what they become."""

  name: str
  texts: tuple[tuple[str, ...], ...]  # of one or two texts each
  ids: np.ndarray  # [batch, length] int64, padded
  mask: np.ndarray  # [batch, length] int64, 0 at padding


class Report(NamedTuple):
  """What the fresh process found."""

  hidden: float  # max |difference| of hidden states at tokens
  logits: float | None  # max |difference| of the head's logits over max(1, largest |logit|); None: no head


def make_cases(
  vocabulary: Vocabulary, *, max_length: int, own_rows: Sequence[tuple[str, ...]] = ()
) -> list[Case]:
  """Single, pair, padded batch, a text cut to `max_length` tokens, and texts, or pairs, of the user's own.

  Rows of the user's own that hold more than ordinary text are left out.
  """
  long_text = " ".join(SENTENCES * (1 + 4 * max_length // sum(map(len, SENTENCES))))
  single = tuple((sentence,) for sentence in SENTENCES)
  pairs = (SENTENCES[:2], SENTENCES[1:3], SENTENCES[2:4], SENTENCES[4:6])
  groups = {
    "single": single[:1],
    "pair": pairs[:1],
    "padded": single,
    "padded pairs": pairs,
    "own rows": _ordinary(vocabulary, own_rows),
    "longest": ((long_text,),),
  }
  cases = []
  for name, texts in groups.items():
    rows = [vocabulary.with_special_ids(*map(vocabulary.encode, text)) for text in texts]
    if name == "longest":
      rows = [row[: max_length - 1] + [vocabulary.special_ids.sep] for row in rows]
    # A tiny model's position table may be shorter than some of these sentences.
    fitting = [(text, row) for text, row in zip(texts, rows) if len(row) <= max_length]
    length = max((len(row) for _, row in fitting), default=0)
    padding = [[vocabulary.special_ids.pad] * (length - len(row)) for _, row in fitting]
    if not fitting:
      continue
    ids = np.asarray([row + pad for (_, row), pad in zip(fitting, padding)], np.int64)
    mask = np.asarray([[1] * len(row) + [0] * len(pad) for (_, row), pad in zip(fitting, padding)], np.int64)
    cases.append(Case(name, tuple(text for text, _ in fitting), ids, mask))
  return cases


def _ordinary(vocabulary: Vocabulary, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
  """The rows without a NUL and without the spelling of a special piece, of which tokenizers make its id."""
  strange = ["\0", *(vocabulary.piece(number) for number in dataclasses.astuple(vocabulary.special_ids))]
  fewest = min(map(len, rows), default=0)  # an older version cut a text into two at a NUL
  return tuple(
    row for row in rows if len(row) == fewest and not any(sign in text for text in row for sign in strange)
  )


@functools.partial(jax.jit, static_argnames=("config", "pad_id"))
def hidden_states(
  encoder: dict, ids: jax.Array, mask: jax.Array, *, config: EncoderConfig, pad_id: int
) -> jax.Array:
  """Last hidden states [batch, length, embed] of ids and mask [batch, length]; compiled once for a shape."""
  return encoder_model.encode(encoder, config, ids, mask > 0, pad_id=pad_id)[1].last


@functools.partial(jax.jit, static_argnames=("config", "head", "activation"))
def logits_of(
  params: dict, hidden: jax.Array, *, config: EncoderConfig, head: str, activation: str
) -> jax.Array:
  """Logits of the head that an exported class has a slot for, with the class's own sign, in float32.

  Of hidden states [batch, length, embed] float32, 'mlm' makes [batch, length, vocab], 'rtd' [batch, length]
  (positive: replaced, as transformers has it), 'classification' [batch, classes], and 'question_answering'
  [batch, length, 2].
  """
  own = params["heads"][head]
  if head == "mlm":
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    return vocab_logits(heads.apply_transform(own, config, hidden), table, own["bias"])
  if head == "rtd":
    return -heads.apply_rtd_head(own, config, hidden)
  if head == "classification":
    return heads.apply_classification_head(own, hidden[:, 0], activation=activation)
  return hidden @ own["kernel"] + own["bias"]


def write_reference(
  path: pathlib.Path,
  params: dict,
  config: EncoderConfig,
  cases: Sequence[Case],
  *,
  pad_id: int,
  head: str,
  activation: str = "tanh",
) -> None:
  """Computes on the CPU and writes, as .npz, what the fresh process compares with.

  The compute dtype of `config` must be float32. `head` is the one whose logits are compared too, '' for none.
  """
  arrays: dict[str, np.ndarray] = {}
  number = 0
  with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
    # The short cases together and the long one alone: two programs to compile, little padding to compute.
    for _, together in itertools.groupby(cases, lambda case: case.name == "longest"):
      batch = list(together)
      outputs = _compute(params, config, batch, pad_id=pad_id, head=head, activation=activation)
      for case, output in zip(batch, outputs):
        saved = {"ids": case.ids, "mask": case.mask, **output}
        arrays |= {f"{number}/{name}": array for name, array in saved.items()}
        number += 1
  described = [{"name": case.name, "texts": case.texts} for case in cases]
  arrays["cases"] = np.frombuffer(json.dumps(described).encode(), np.uint8)
  np.savez(path, allow_pickle=False, **arrays)


def _compute(
  params: dict, config: EncoderConfig, cases: Sequence[Case], *, pad_id: int, head: str, activation: str
) -> Iterator[dict[str, np.ndarray]]:
  """Yields 'hidden', and 'logits' of a head, of each case; all are computed as one batch."""
  shape = sum(len(case.ids) for case in cases), max(case.ids.shape[1] for case in cases)
  ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
  ends = np.cumsum([len(case.ids) for case in cases])
  slots = [np.s_[end - len(case.ids) : end, : case.ids.shape[1]] for case, end in zip(cases, ends)]
  for case, slot in zip(cases, slots):
    ids[slot], mask[slot] = case.ids, case.mask
  hidden = hidden_states(params["encoder"], ids, mask, config=config, pad_id=pad_id)
  outputs = {"hidden": np.asarray(hidden)}
  if head:
    logits = logits_of(params, hidden, config=config, head=head, activation=activation)
    outputs["logits"] = np.asarray(logits)
  for rows, tokens in slots:
    output = {name: array[rows, tokens] for name, array in outputs.items()}
    if head == "classification":  # of a text, not of a token
      output["logits"] = outputs["logits"][rows]
    yield output


def read_reference(
  path: pathlib.Path,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]:
  """Yields ids, mask [batch, length] int64, hidden states [batch, length, embed] and logits of each case."""
  with np.load(path, allow_pickle=False) as file:
    for number in range(len(json.loads(file["cases"].tobytes()))):
      logits = file.get(f"{number}/logits")
      yield file[f"{number}/ids"], file[f"{number}/mask"], file[f"{number}/hidden"], logits


def run_in_fresh_process(folder: pathlib.Path, reference: pathlib.Path, layout: str) -> Report:
  """Runs `torch_check` on a folder.

  DataError: it could not be loaded, its tokenizer gives other ids, or names are missing or left over.
  """
  command = [sys.executable, "-m", "pretrain.export.check.torch_check", str(folder), str(reference), layout]
  offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
  finished = subprocess.run(
    command, capture_output=True, text=True, errors="replace", env=os.environ | offline, check=False
  )
  if finished.returncode:
    lines = [line for line in finished.stderr.splitlines() if line.strip()]
    lines = lines or [f"exit code {finished.returncode}"]
    raise DataError(
      f"self-check: PyTorch cannot use the {layout} export ({lines[-1].strip()[:300]}); nothing was kept"
    )
  return Report(**json.loads(finished.stdout.splitlines()[-1]))


def check(folder: pathlib.Path, reference: pathlib.Path, layout: str, *, tolerance: float) -> Report:
  """Compares an export of a layout of `layouts.LAYOUTS` with the .npz of `write_reference`.

  DataError: a |difference| above the tolerance, or as in `run_in_fresh_process`.
  """
  report = run_in_fresh_process(folder, reference, layout)
  worst = max(report.hidden, report.logits or 0.0)
  if not worst <= tolerance:
    raise DataError(
      f"self-check: the {layout} export differs from this model by {worst:.2e} (hidden states "
      f"{report.hidden:.2e}), allowed {tolerance:.0e}; nothing was kept. If the checkpoint has huge weights, "
      "--tolerance states another bound; otherwise report this"
    )
  return report
