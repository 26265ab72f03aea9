"""The self-check of an export: a fresh process loads the folder and must compute the same outputs.

Here the reference is computed: real sentences, their ids, and hidden states and logits by the JAX encoder in
float32. `torch_check` is the other process.
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
import jax.numpy as jnp
import numpy as np

from data.errors import DataError
from data.vocabulary import Vocabulary
from pretrain.embed.schema import SIDES, EmbeddingSchema, unit
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.models.layers import EncoderConfig
from pretrain.ops.positions import pool
from pretrain.ops.vocab import vocab_logits

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
  """A batch of texts or pairs, and its padded ids."""

  name: str
  texts: tuple[tuple[str, ...], ...]  # each row has one text or two
  ids: np.ndarray  # [batch, length] int64, padded
  mask: np.ndarray  # [batch, length] int64, 0 at padding


class Report(NamedTuple):
  """The largest differences that the fresh process measured."""

  hidden: float  # max |difference| of hidden states at tokens
  logits: float | None  # max |difference| of the head's logits over max(1, largest |logit|); None: no head
  vectors: float | None = None  # max |difference| of vectors of queries and passages; None: no files for them


def make_cases(
  vocabulary: Vocabulary,
  *,
  max_length: int,
  own_rows: Sequence[tuple[str, ...]] = (),
  radius: int = 0,
  schema: EmbeddingSchema | None = None,
) -> list[Case]:
  """Returns batches for the self-check: texts, pairs, the user's own rows, and one text cut to `max_length`.

  Rows of the user with NUL characters or special tokens are skipped. If layers have a window, which reaches
  `radius` tokens to both sides, a text that is longer than it is there, beside a short one. With a `schema`
  there are the texts of both sides with its prefixes, under the names of `SIDES`.
  """
  wide, more = "", itertools.cycle(" ".join(SENTENCES).split())
  while radius and len(vocabulary.encode(wide)) <= 2 * radius:
    wide += f"{next(more)} "
  long_text = " ".join(SENTENCES * (1 + 4 * max_length // sum(map(len, SENTENCES))))
  single = tuple((sentence,) for sentence in SENTENCES)
  pairs = (SENTENCES[:2], SENTENCES[1:3], SENTENCES[2:4], SENTENCES[4:6])
  groups = {
    "texts": single,
    "pairs": pairs,
    "own rows": _ordinary(vocabulary, own_rows),
    "beyond the window": ((wide,), single[0]) if radius else (),
    **{side: tuple((schema.prefix(side) + text,) for text in SENTENCES) for side in SIDES if schema},
    "longest": ((long_text,),),
  }
  cases = []
  for name, texts in groups.items():
    rows = [vocabulary.with_special_ids(*map(vocabulary.encode, text)) for text in texts]
    if name == "longest":
      rows = [row[: max_length - 1] + [vocabulary.special_ids.sep] for row in rows]
    # A tiny model's position table may be shorter than some of these sentences.
    most = schema.longest(max_length) if schema and name in SIDES else max_length
    fitting = [(text, row) for text, row in zip(texts, rows) if len(row) <= most]
    if not fitting:
      continue
    ids = np.full((len(fitting), max(len(row) for _, row in fitting)), vocabulary.special_ids.pad, np.int64)
    mask = np.zeros_like(ids)
    for number, (_, row) in enumerate(fitting):
      ids[number, : len(row)], mask[number, : len(row)] = row, 1
    cases.append(Case(name, tuple(text for text, _ in fitting), ids, mask))
  return cases


def _ordinary(vocabulary: Vocabulary, rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
  """Returns the rows without NUL and without a special token's text, which tokenizers turn into its id."""
  strange = ["\0", *(vocabulary.piece(number) for number in dataclasses.astuple(vocabulary.special_ids))]
  return tuple(row for row in rows if not any(sign in text for text in row for sign in strange))


@functools.partial(jax.jit, static_argnames=("config", "pad_id"))
def hidden_states(
  encoder: dict, ids: jax.Array, mask: jax.Array, *, config: EncoderConfig, pad_id: int
) -> jax.Array:
  """Computes last hidden states [batch, length, embed] for ids and mask [batch, length]."""
  return encoder_model.encode(encoder, config, ids, mask > 0, pad_id=pad_id)[1].last


@functools.partial(jax.jit, static_argnames=("config", "head", "activation", "pooling"))
def logits_of(
  params: dict,
  hidden: jax.Array,
  mask: jax.Array,
  *,
  config: EncoderConfig,
  head: str,
  activation: str,
  pooling: str,
) -> jax.Array:
  """Computes a head's float32 logits from hidden states, with the sign of the exported class.

  `hidden` is float32 [batch, length, embed], `mask` [batch, length]. Logits are [batch, length, vocab] for
  'mlm' and 'clm', [batch, classes] for 'classification', and [batch, length, labels] for 'tagging' and
  'question_answering'. Those of 'rtd' are [batch, length] (positive: replaced, as in ELECTRA's class), in
  pre-norm classes [batch, length, 2].
  """
  own = params["heads"][head]
  if head in ("mlm", "clm"):
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    transformed = heads.apply_transform(own, config, hidden) if head == "mlm" else hidden
    return vocab_logits(transformed, table, own["bias"])
  if head == "rtd":
    logits = heads.apply_rtd_head(own, config, hidden)
    two_labels = jnp.stack([jnp.zeros_like(logits), logits], axis=-1)
    return two_labels if config.norm_placement == "pre" else -logits
  if head == "classification":
    vectors = pool(hidden, mask > 0, pooling)
    return heads.apply_classification_head(own, vectors, activation=activation, config=config)
  return heads.apply_tagging_head(own, hidden, config=config)


def write_reference(
  path: pathlib.Path,
  params: dict,
  config: EncoderConfig,
  cases: Sequence[Case],
  *,
  pad_id: int,
  head: str,
  activation: str = "tanh",
  pooling: str = "cls",
  schema: EmbeddingSchema | None = None,
) -> None:
  """Computes the reference outputs on the CPU and writes them as .npz for the fresh process.

  The compute dtype of `config` must be float32. `head` is the head whose logits are compared too; '': none.
  With a `schema` each case has its texts' vectors too.
  """
  arrays: dict[str, np.ndarray] = {}
  number = 0
  with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
    # All short cases as one batch, the long one alone: two compilations, little padding.
    for _, together in itertools.groupby(cases, lambda case: case.name == "longest"):
      batch = list(together)
      settings = {"head": head, "activation": activation, "pooling": pooling}
      outputs = _compute(params, config, batch, pad_id=pad_id, **settings)
      for case, output in zip(batch, outputs):
        saved = {"ids": case.ids, "mask": case.mask, **output}
        if schema:
          made = np.asarray(pool(jnp.asarray(output["hidden"]), jnp.asarray(case.mask > 0), schema.pooling))
          saved["vectors"] = unit(made) if schema.unit else made
        arrays |= {f"{number}/{name}": array for name, array in saved.items()}
        number += 1
  described = [{"name": case.name, "texts": case.texts} for case in cases]
  arrays["cases"] = np.frombuffer(json.dumps(described).encode(), np.uint8)
  np.savez(path, allow_pickle=False, **arrays)


def _compute(
  params: dict, config: EncoderConfig, cases: Sequence[Case], *, pad_id: int, head: str, **settings: str
) -> Iterator[dict[str, np.ndarray]]:
  """Yields {'hidden': ..., 'logits': ...} for each case; all cases are computed as one batch."""
  shape = sum(len(case.ids) for case in cases), max(case.ids.shape[1] for case in cases)
  ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
  ends = np.cumsum([len(case.ids) for case in cases])
  slots = [np.s_[end - len(case.ids) : end, : case.ids.shape[1]] for case, end in zip(cases, ends)]
  for case, slot in zip(cases, slots):
    ids[slot], mask[slot] = case.ids, case.mask
  hidden = hidden_states(params["encoder"], ids, mask, config=config, pad_id=pad_id)
  outputs = {"hidden": np.asarray(hidden)}
  if head:
    logits = logits_of(params, hidden, mask, config=config, head=head, **settings)
    outputs["logits"] = np.asarray(logits)
  for rows, tokens in slots:
    output = {name: array[rows, tokens] for name, array in outputs.items()}
    if head == "classification":  # of a text, not of a token
      output["logits"] = outputs["logits"][rows]
    yield output


def read_reference(path: pathlib.Path) -> Iterator[dict[str, np.ndarray]]:
  """Yields 'ids' and 'mask' [batch, length] int64, and 'hidden', 'logits' and 'vectors', of each case."""
  with np.load(path, allow_pickle=False) as file:
    for number in range(len(json.loads(file["cases"].tobytes()))):
      start = f"{number}/"
      yield {name.removeprefix(start): file[name] for name in file.files if name.startswith(start)}


def run_in_fresh_process(folder: pathlib.Path, reference: pathlib.Path, layout: str) -> Report:
  """Runs `torch_check` on a folder in a new process and returns its report.

  DataError: the export cannot be loaded, its tokenizer returns other ids, or tensors are missing or unused.
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
      f"self-check: PyTorch cannot use the {layout} export; nothing was written ({lines[-1].strip()[:300]})"
    )
  return Report(**json.loads(finished.stdout.splitlines()[-1]))


def check(folder: pathlib.Path, reference: pathlib.Path, layout: str, *, tolerance: float) -> Report:
  """Compares an export with the .npz of `write_reference` in a fresh process; returns the differences.

  DataError: a difference is above the tolerance, or as in `run_in_fresh_process`.
  """
  report = run_in_fresh_process(folder, reference, layout)
  worst = max(report.hidden, report.logits or 0.0, report.vectors or 0.0)
  if not worst <= tolerance:
    raise DataError(
      f"self-check: the {layout} export differs from this model by {worst:.2e} (hidden states "
      f"{report.hidden:.2e}), allowed {tolerance:.0e}; nothing was written. Please report it; only if the "
      f"weights are very large, allow the difference\n  --tolerance={2 * worst:.0e}"
    )
  return report
