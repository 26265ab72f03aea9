"""The self-check of an export: PyTorch loads the folder as a user would, and must compute what JAX computes.

Real sentences are read by the exported tokenizer, which must return our ids. Hidden states, logits of the
head and vectors must be those of the JAX encoder in float32. Needs the export extra.
"""

import dataclasses
import functools
import itertools
import json
import logging
import pathlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import DataError, named_reason, on_one_line
from data.vocabulary import Vocabulary
from pretrain.embed.schema import SIDES, EmbeddingSchema, unit
from pretrain.export import embedding_files
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
  """A batch of texts or pairs, its padded ids, and what our encoder computes for them (`with_outputs`)."""

  name: str
  texts: tuple[tuple[str, ...], ...]  # each row has one text or two
  ids: np.ndarray  # [batch, length] int64, padded
  mask: np.ndarray  # [batch, length] int64, 0 at padding
  hidden: np.ndarray = np.zeros(0)  # [batch, length, embed] float32
  logits: np.ndarray | None = None  # of the head that the class computes, as `logits_of` gives them
  vectors: np.ndarray | None = None  # [batch, embed] float32, of an embedding model


class Report(NamedTuple):
  """The largest differences between the export and our encoder."""

  hidden: float  # max |difference| of hidden states at tokens
  logits: float | None = (
    None  # max |difference| of the head's logits over max(1, largest |logit|); None: no head
  )
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
  # Tokenizers turn the text of a special token into its id.
  strange = ["\0", *map(vocabulary.piece, dataclasses.astuple(vocabulary.special_ids))]
  pairs = (SENTENCES[:2], SENTENCES[1:3], SENTENCES[2:4], SENTENCES[4:6])
  groups = {
    "texts": single,
    "pairs": pairs,
    "own rows": tuple(row for row in own_rows if not any(sign in text for text in row for sign in strange)),
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
    return vocab_logits(*heads.scored(own, config, hidden, table))
  if head == "rtd":
    logits = heads.apply_rtd_head(own, config, hidden)
    two_labels = jnp.stack([jnp.zeros_like(logits), logits], axis=-1)
    return two_labels if config.norm_placement == "pre" else -logits
  if head == "classification":
    vectors = pool(hidden, mask > 0, pooling)
    return heads.apply_classification_head(own, vectors, activation=activation, config=config)
  return heads.apply_tagging_head(own, hidden, config=config)


def with_outputs(
  cases: Sequence[Case],
  params: dict,
  config: EncoderConfig,
  *,
  pad_id: int,
  head: str,
  activation: str = "tanh",
  pooling: str = "cls",
  schema: EmbeddingSchema | None = None,
) -> list[Case]:
  """Returns the cases with our outputs, computed on the CPU.

  The compute dtype of `config` must be float32. `head` is the head whose logits are compared too; '': none.
  With a `schema` each case has its texts' vectors too.
  """
  made = []
  with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
    # All short cases as one batch, the long one alone: two compilations, little padding.
    for _, group in itertools.groupby(cases, lambda case: case.name == "longest"):
      together = list(group)
      shape = sum(len(case.ids) for case in together), max(case.ids.shape[1] for case in together)
      ids, mask = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
      ends = np.cumsum([len(case.ids) for case in together])
      slots = [np.s_[end - len(case.ids) : end, : case.ids.shape[1]] for case, end in zip(together, ends)]
      for case, slot in zip(together, slots):
        ids[slot], mask[slot] = case.ids, case.mask
      hidden = hidden_states(params["encoder"], ids, mask, config=config, pad_id=pad_id)
      settings = {"config": config, "head": head, "activation": activation, "pooling": pooling}
      logits = np.asarray(logits_of(params, hidden, mask, **settings)) if head else None
      vectors = None
      if schema:
        vectors = np.asarray(pool(hidden, jnp.asarray(mask > 0), schema.pooling))
        vectors = unit(vectors) if schema.unit else vectors
      for case, slot in zip(together, slots):
        of_texts = head == "classification"  # logits of a text, not of a token
        made.append(
          case._replace(
            hidden=np.asarray(hidden)[slot],
            logits=None if logits is None else logits[slot[0] if of_texts else slot],
            vectors=None if vectors is None else vectors[slot[0]],
          )
        )
  return made


def check(folder: pathlib.Path, cases: Sequence[Case], layout: str, *, tolerance: float) -> Report:
  """Compares a folder of a stock class with the outputs of the cases; returns the differences.

  DataError: transformers cannot load the folder, its tokenizer returns other ids, tensors are missing, or a
  difference is above the tolerance.
  """
  try:
    report = compare(folder, cases)
  except Exception as error:  # what a class raises on a wrong folder may have any type
    why = named_reason(error, words=on_one_line(error)[:300])
    raise DataError(
      f"self-check: PyTorch cannot use the {layout} export; nothing was written ({why})"
    ) from error
  worst = max(report.hidden, report.logits or 0.0, report.vectors or 0.0)
  if not worst <= tolerance:
    raise DataError(
      f"self-check: the {layout} export differs from this model by {worst:.2e} (hidden states "
      f"{report.hidden:.2e}), allowed {tolerance:.0e}; nothing was written. Please report it; only if the "
      f"weights are very large, allow the difference\n  --tolerance={2 * worst:.0e}"
    )
  return report


def compare(folder: pathlib.Path, cases: Sequence[Case]) -> Report:
  """Loads a folder by AutoModel and AutoTokenizer, without custom code, and returns its differences.

  ValueError: the tokenizer returns other ids, a tensor is missing, or an output has another shape. The
  classes of transformers raise errors of their own.
  """
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
  model = _load(transformers.AutoModel, folder)
  (name,) = json.loads((folder / "config.json").read_text())["architectures"]
  with_head = _load(getattr(transformers, name), folder) if "For" in name else None
  report = Report(0.0)
  for case in cases:
    inputs = _tokenized(tokenizer, case)
    if case.name == "own rows" and name.endswith("ForTokenClassification"):
      _check_words(tokenizer, case)
    is_token = case.mask > 0  # padding has no defined value
    with torch.no_grad():
      hidden = model(**inputs).last_hidden_state.numpy()
      report = report._replace(hidden=max(report.hidden, difference(hidden, case.hidden, is_token)))
      if with_head is not None and case.logits is not None:
        of_texts = name.endswith("ForSequenceClassification")
        found = difference(
          _logits(with_head(**inputs)).numpy(), case.logits, ... if of_texts else is_token, relative=True
        )
        report = report._replace(logits=max(report.logits or 0.0, found))
  if (folder / embedding_files.MODULES).is_file():
    schema = EmbeddingSchema.read(folder)
    encode = _encoders(folder, schema, model, tokenizer)
    for case in cases:
      if case.name in SIDES and case.vectors is not None:
        texts = [text[len(schema.prefix(case.name)) :] for (text,) in case.texts]
        found = difference(encode[case.name](texts), case.vectors)
        report = report._replace(vectors=max(report.vectors or 0.0, found))
  return report


def difference(
  actual: np.ndarray, expected: np.ndarray, where: Any = ..., *, relative: bool = False
) -> float:
  """Returns max |actual - expected| at `where`; infinity if it is none. ValueError: another shape.

  `relative`: divided by max(1, largest |expected|).
  """
  if actual.shape != expected.shape:
    raise ValueError(f"shapes {actual.shape} and {expected.shape}")
  actual, expected = actual[where].astype(np.float64), expected[where]
  found = float(np.abs(actual - expected).max())
  found /= max(1.0, float(np.abs(expected).max())) if relative else 1.0
  return found if np.isfinite(found) else float("inf")


def _load(kind, folder: pathlib.Path):
  """Returns a class's model of a folder, for inference. ValueError: a tensor is missing or does not fit."""
  model, info = kind.from_pretrained(folder, output_loading_info=True, local_files_only=True)
  for problem in ("missing_keys", "mismatched_keys", "error_msgs"):  # would get random values
    if info.get(problem):
      raise ValueError(f"{problem}: {sorted(map(str, info[problem]))[:5]}")
  return model.eval()


def _encoders(
  folder: pathlib.Path, schema: EmbeddingSchema, model, tokenizer
) -> dict[str, Callable[[list[str]], np.ndarray]]:
  """Returns a function of texts to vectors for each side: that of sentence-transformers, if it is installed.

  Without it the class and the tokenizer of transformers compute them, pooled here.
  """
  import torch

  if find_spec("sentence_transformers") is not None:
    from sentence_transformers import SentenceTransformer

    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)  # it warns of a default prompt
    library = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    methods = dict(zip(SIDES, (library.encode_query, library.encode_document)))
    return {side: functools.partial(method, show_progress_bar=False) for side, method in methods.items()}

  def encode(texts: list[str], side: str) -> np.ndarray:
    inputs = tokenizer([schema.prefix(side) + text for text in texts], padding=True, return_tensors="pt")
    with torch.no_grad():
      hidden = model(**inputs).last_hidden_state
    return embedding_files.pooled(hidden, inputs["attention_mask"], schema).numpy()

  return {side: functools.partial(encode, side=side) for side in SIDES}


def _tokenized(tokenizer, case: Case):
  """Tokenizes texts or pairs with the export's tokenizer; raises ValueError if its ids are not ours."""
  columns = [list(column) for column in zip(*case.texts)]
  inputs = tokenizer(*columns, padding=True, truncation=True, return_tensors="pt")
  for what, actual, expected in (
    ("ids", inputs["input_ids"].numpy(), case.ids),
    ("attention mask", inputs["attention_mask"].numpy(), case.mask),
  ):
    if actual.shape != expected.shape or (actual != expected).any():
      where = "shape" if actual.shape != expected.shape else int(np.argmax((actual != expected).any(0)))
      raise ValueError(
        f"the tokenizer returns other {what} for {case.name!r} at position {where}: "
        f"{actual[0][:12].tolist()}, expected {expected[0][:12].tolist()}"
      )
  return inputs


def _check_words(tokenizer, case: Case) -> None:
  """Raises ValueError if a text given as a list of words, as for tagging, gets other ids than ours."""
  for (text,), expected, is_token in zip(case.texts, case.ids, case.mask > 0):
    words = text.split(" ")
    # A tokenizer.json with add_prefix_space=false takes words with the space before them.
    spaced = [words[0], *(f" {word}" for word in words[1:])]
    actual, behind = (tokenizer(given, is_split_into_words=True)["input_ids"] for given in (words, spaced))
    if expected[is_token].tolist() not in (actual, behind):
      raise ValueError(f"the tokenizer returns other ids for the words {words[:5]}: {actual[:12]}")


def _logits(output):
  """Returns the logits of a class's output; start and end of answers as [batch, length, 2]."""
  import torch

  if "start_logits" in output:
    return torch.stack([output.start_logits, output.end_logits], dim=-1)
  return output.prediction_logits if "prediction_logits" in output else output.logits
