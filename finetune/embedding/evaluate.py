"""Evaluates an embedding model and makes the report: on pairs with a score or a yes or no, or on BEIR."""

import argparse
import dataclasses
import hashlib
import importlib.util
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats
from sklearn import metrics

from data import command, output_files, rows, tables
from data.errors import ConfigError, DataError, counted, listed
from data.rows import Row
from data.rows.values import as_number
from finetune.embedding import load, retrieval
from finetune.embedding.nearest import NearestPassages
from finetune.papers.glue_metrics import pearson, spearman
from pretrain.checkpoints.saved_model import SavedModel, open_model
from pretrain.embed.schema import SIDES, EmbeddingSchema, unit
from pretrain.embed.vectors import Embedder
from pretrain.inference import stream

_QUERIES = ("query", "question", "anchor")  # columns of queries; other texts are passages
_BOOLEANS = {"true": 1.0, "false": 0.0}


@dataclasses.dataclass(frozen=True)
class PairColumns:
  """The columns of two texts and of their label."""

  texts: tuple[str, str]
  label: str

  @property
  def sides(self) -> tuple[str, str]:
    """The side of each text: 'query' by the name of its column, else 'passage'."""
    first, second = ("query" if name.lower() in _QUERIES else "passage" for name in self.texts)
    return first, second

  def number(self, row: Row) -> float:
    """Returns the label of a row, 1 and 0 for true and false; DataError: it is no finite number."""
    value = row.value(self.label)
    number = _BOOLEANS.get(str(value).strip().lower(), as_number(value))
    if number is None or not math.isfinite(number):
      row.refuse(f"{self.label!r} is {str(value)[:40]!r}; expected a number, or true or false")
    return number


def find_columns(path: str, asked: argparse.Namespace) -> PairColumns:
  """Returns the columns that --text, --text_pair and --label name, or guesses them by common names.

  Raises:
    ConfigError: the file lacks a named column, or one text is named without the other.
    DataError: no column is known to be the text or the label, or the label is a class with a name.
  """
  if bool(asked.text) != bool(asked.text_pair):
    raise ConfigError("--text and --text_pair name the two texts of a row; give both, or neither")
  there = rows.columns(path)
  of_texts = {"text": asked.text, "text_pair": asked.text_pair}
  chosen = load.find(path, there, **of_texts, label=asked.label, flag="--")
  if not chosen.second:
    raise DataError(
      f"{path}: no columns of {listed(there)} are known to be two texts; name them:\n"
      "  --text=NAME --text_pair=NAME"
    )
  load.refuse_classes(path, chosen, label=asked.label, flag="--")
  if not chosen.score:
    raise DataError(
      f"{path}: no column of {listed(there)} is known to be the label; name it:\n  --label=NAME"
    )
  return PairColumns((chosen.first, chosen.second), chosen.score)


RESAMPLES = 1000
_AT_ONCE = 1 << 22  # pairs of resamples in memory


def of_numbers(similarities: np.ndarray, gold: np.ndarray) -> dict[str, float]:
  """Returns Spearman's correlation with its 95 % interval, and Pearson's, of [pairs] float arrays.

  The interval is of a percentile bootstrap over pairs.
  """
  interval = stats.bootstrap(
    (similarities, gold),
    spearman,
    paired=True,
    vectorized=False,
    n_resamples=RESAMPLES,
    batch=max(1, _AT_ONCE // len(gold)),
    method="percentile",
    rng=0,
  ).confidence_interval
  scores = {"spearman": spearman(similarities, gold), "low": interval.low, "high": interval.high}
  return {name: float(value) for name, value in scores.items()} | {"pearson": pearson(similarities, gold)}


def of_classes(similarities: np.ndarray, gold: np.ndarray) -> dict[str, float]:
  """Returns average precision, and the best accuracy and F1 with their thresholds, of [pairs] arrays.

  A pair counts as positive if its similarity is at least the threshold. A threshold is halfway between the
  similarities that it separates; of equally good ones it is the highest. `gold` is 1 for a positive pair,
  else 0; both occur.
  """
  order = np.argsort(-similarities, kind="stable")
  ranked, positive = similarities[order], gold[order] == 1
  right = np.cumsum(positive)  # positive pairs at or above each rank
  above = np.arange(1, len(ranked) + 1)  # pairs there
  ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # a threshold keeps equal pairs together
  # Above the first rank: no pair is called positive.
  accuracy = np.append(np.sum(~positive), (2 * right - above + np.sum(~positive))[ends]) / len(ranked)
  f1 = 2 * right[ends] / (above[ends] + right[-1])
  best, best_f1 = int(np.argmax(accuracy)), int(np.argmax(f1))
  below = np.append(ranked[1:], ranked[-1])
  halfway = np.append(np.nextafter(ranked[0], np.inf, dtype=ranked.dtype), ((ranked + below) / 2)[ends])
  return {
    "average_precision": float(metrics.average_precision_score(gold, similarities)),
    "accuracy": float(accuracy[best]),
    "accuracy_threshold": float(halfway[best]),
    "f1": float(f1[best_f1]),
    "f1_threshold": float(halfway[best_f1 + 1]),
  }


_EXTRA = ("pytrec_eval", "bm25s")
_INTERVAL = "95 % interval"


class System(NamedTuple):
  """A model to evaluate."""

  name: str  # in the report
  path: str
  embedder: Embedder
  sizes: tuple[int, ...]  # so many first numbers of a vector are evaluated; the first: all

  @property
  def remark(self) -> str:
    """How the model makes vectors of texts, and how many texts were truncated."""
    schema = self.embedder.schema
    prefixes = [f"{side} prefix {schema.prefix(side)!r}" for side in SIDES if schema.prefix(side)]
    cut = [f"{counted(self.embedder.cut, 'text')} truncated"] if self.embedder.cut else []
    return f"{self.name}: {self.path}, {', '.join([f'pooling {schema.pooling}', *prefixes, *cut])}."


def evaluate(asked: argparse.Namespace, saved: SavedModel) -> None:
  """Prints the report of the flags of `finetune.evaluate`; with --output also writes it.

  Raises:
    ConfigError: a flag does not apply to the data, a size is impossible, or a library is not installed.
    DataError: a file or row of the data is wrong, or a model has no vocabulary.
    DivergedError: a vector is not finite.
  """
  is_folder, sizes = pathlib.Path(asked.data).is_dir(), _sizes(asked.sizes)
  unfit = ("text", "text_pair", "label") if is_folder else ("split",)
  for flag in unfit:
    if value := getattr(asked, flag):
      kind = "a file of pairs has no splits" if flag == "split" else "a BEIR folder names its columns itself"
      raise ConfigError(f"--{flag}={value}: {kind}; leave it out")
  if is_folder:
    refuse_missing()
  vocabulary = {"vocabulary_directory": asked.vocabulary, "flag": "--vocabulary"}
  systems = [_open("model", asked.model, saved, asked.batch_size, sizes, **vocabulary)]
  if asked.beside:
    systems.append(_open("beside", asked.beside, open_model(asked.beside), asked.batch_size))
  report = _of_folder(asked, systems) if is_folder else _of_pairs(asked, systems)
  if asked.output:
    report.publish(asked.output)
  else:
    report.print()


def refuse_missing() -> None:
  """Raises ConfigError if a library of the evaluation of retrieval is not installed."""
  missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
  if missing:
    raise ConfigError(
      f"retrieval is evaluated with {' and '.join(_EXTRA)}; not installed: {', '.join(missing)}; run\n"
      "  pip install -r requirements-embeddings.txt"
    )


def _sizes(listed: str) -> tuple[int, ...]:
  names = command.names(listed)
  if not all(name.isdecimal() and int(name) for name in names):
    raise ConfigError(f"--sizes={listed}: expected numbers above 0 with commas, such as --sizes=256,64")
  return tuple(dict.fromkeys(map(int, names)))


def _open(
  name: str, path: str, saved: SavedModel, batch_size: int, sizes: Sequence[int] = (), **vocabulary: str
) -> System:
  """Puts an encoder on the devices, with the schema that is stored beside its checkpoints.

  Raises:
    ConfigError: one of the `sizes` exceeds the width of the model's vectors.
    DataError: the model has no vocabulary, or its schema is damaged.
  """
  encoder = saved.open_encoder(**vocabulary)
  width = encoder.config.hidden_size
  if sizes and max(sizes) > width:
    raise ConfigError(
      f"--sizes: {max(sizes)}; the model's vectors have {width} numbers, expected at most that"
    )
  embedder = Embedder(encoder, EmbeddingSchema.read(saved.workdir), batch_size=batch_size)
  return System(name, path, embedder, (width, *(size for size in sizes if size != width)))


def _of_pairs(asked: argparse.Namespace, systems: Sequence[System]) -> tables.Report:
  path, of_file = asked.data, find_columns(asked.data, asked)
  gold: list[float] = []

  def check(row: Row) -> None:
    gold.append(of_file.number(row))
    for name in of_file.texts:
      row.text(name)

  output_files.survey(path, check)
  labels = np.asarray(gold)
  is_classes = set(gold) <= {0.0, 1.0}
  if len(set(gold)) < 2:
    raise DataError(f"{path}: {of_file.label!r} is {gold[0]:g} in every row; expected two values or more")
  measure = of_classes if is_classes else of_numbers
  scored = [
    {"model": system.name, "similarity": kind, "size": size, "pairs": len(gold), **measure(found, labels)}
    for system in systems
    for (kind, size), found in _similarities(path, of_file, system, len(gold), asked.batch_size).items()
  ]
  if is_classes:
    shown = [
      _percent_column("avg. precision", "average_precision"),
      _percent_column("accuracy", "accuracy"),
      tables.Column("from", lambda row: f"{row['accuracy_threshold']:.4f}"),
      _percent_column("F1", "f1"),
      tables.Column("from", lambda row: f"{row['f1_threshold']:.4f}"),
    ]
    note = (
      "Accuracy and F1 are the best over all thresholds on these pairs: a pair counts as positive from this "
      "similarity on. So they are higher than on new pairs."
    )
  else:
    interval = tables.Column(_INTERVAL, lambda row: f"{_percent(row['low'])} to {_percent(row['high'])}")
    shown = [_percent_column("Spearman", "spearman"), interval, _percent_column("Pearson", "pearson")]
    note = f"The interval is of Spearman's correlation, by a bootstrap of {RESAMPLES:,} draws."
  texts = " and ".join(map(repr, of_file.texts))
  notes = [
    f"{counted(len(gold), 'pair')}: {texts} with {of_file.label!r}; in percent.",
    note,
    *(system.remark for system in systems),
  ]
  kind = "Pairs of two classes" if is_classes else "Similarity of pairs"
  first = [*_system_columns(), tables.text_column("similarity", "similarity")]
  return tables.Report("results", f"{kind}, {asked.model} on {path}", [*first, *shown], scored, notes)


def _similarities(
  path: str, of_file: PairColumns, system: System, total: int, batch_size: int
) -> dict[tuple[str, int], np.ndarray]:
  """Returns {(kind, size): similarities [pairs] float32}; 'dot' only for vectors of various lengths."""
  embedder = system.embedder
  parts: dict[tuple[str, int], list[np.ndarray]] = {}

  def prepare(part: list[Row]) -> list:
    texts = ([row.text(name) for row in part] for name in of_file.texts)
    return [made for side, of_side in zip(of_file.sides, texts) for made in embedder.inputs(of_side, side)]

  def compute(part: list[Row], inputs: list) -> list[dict]:
    vectors = embedder.vectors(inputs)
    for size in system.sizes:
      both = vectors[:, :size]
      kinds = {"cosine": unit(both)} | ({} if embedder.schema.unit else {"dot": both})
      for kind, made in kinds.items():
        found = np.sum(made[: len(part)] * made[len(part) :], axis=-1)
        # Rounded, so that equal pairs stay equal in batches of any size.
        parts.setdefault((kind, size), []).append(found.round(6) if kind == "cosine" else found)
    return []

  stream.answer(path, prepare, compute, batch_size=batch_size, total=total)
  return {name: np.concatenate(part) for name, part in sorted(parts.items(), key=lambda item: item[0][0])}


def _of_folder(asked: argparse.Namespace, systems: Sequence[System]) -> tables.Report:
  split = asked.split or "test"
  data = retrieval.read(asked.data, split)
  most, results = retrieval.depth(data), []
  for system in systems:
    found = _search(data, system, most, asked.batch_size)
    results += [
      (system.name, size, retrieval.scores(data, *of_size)) for size, of_size in zip(system.sizes, found)
    ]
  texts = (retrieval.passage(row) for row in rows.read(data.corpus))
  results.append(
    ("BM25", None, retrieval.scores(data, *retrieval.search(texts, list(data.queries.values()), most)))
  )
  main = next(iter(retrieval.METRICS))
  ours, scored = results[0][2][main], []
  for at, (name, size, of_queries) in enumerate(results):
    scored.append({"model": name, "size": size, "queries": len(data.queries), "passages": len(data.ids)})
    scored[-1] |= {metric: float(np.mean(values)) for metric, values in of_queries.items()}
    if at:
      names = ("difference", "half_interval")
      scored[-1] |= dict(zip(names, retrieval.difference(ours, of_queries[main])))
  shown = [_percent_column(name, name) for name in retrieval.METRICS]
  shown.append(tables.Column(f"model minus it, {main}", _difference))
  notes = [
    f"Split {split}: {len(data.queries):,} queries, {counted(len(data.ids), 'passage')}; in percent, by "
    "trec_eval. Search is exact, by cosine; a passage with the id of its query is ignored.",
    f"The last column is the {main} of the model minus that of the row, ± 1.96 standard errors over queries.",
    retrieval.NOTE,
    *(system.remark for system in systems),
  ]
  if data.lost_passages:
    notes.append(
      f"Judgements of passages that the corpus lacks, not found as by trec_eval: {data.lost_passages:,}."
    )
  if data.lost_queries:
    notes.append(f"Judgements of queries that the folder lacks, skipped: {data.lost_queries:,}.")
  if data.unjudged:
    notes.append(f"Queries without a judgement in this split, skipped as in BEIR: {data.unjudged:,}.")
  if data.irrelevant:
    notes.append(f"Queries without a relevant passage, scored 0 as by trec_eval: {data.irrelevant:,}.")
  header = [*_system_columns(), *shown]
  return tables.Report("results", f"Retrieval, {asked.model} on {asked.data}", header, scored, notes)


def _search(
  data: retrieval.Beir, system: System, most: int, batch_size: int
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns cosines and numbers [queries, most] of the nearest passages for each size of the vectors."""
  embedder, block = system.embedder, stream.BATCHES_OF_PART * batch_size
  queries = embedder.vectors(embedder.inputs(list(data.queries.values()), "query"))
  nearest = {size: NearestPassages(queries[:, :size], most, block=block) for size in system.sizes}
  # Copies of a passage have one vector: the rounding of several would order them by their batches.
  different: dict[bytes, int] = {}
  number_of: list[int] = []  # of each passage among the different ones

  def prepare(part: list[Row]) -> list:
    fresh = []
    for made in embedder.inputs([retrieval.passage(row) for row in part]):
      key = hashlib.blake2b(made["ids"].tobytes(), digest_size=16).digest()
      if key not in different:
        different[key] = len(different)
        fresh.append(made)
      number_of.append(different[key])
    return fresh

  def compute(part: list[Row], inputs: list) -> list[dict]:
    vectors = embedder.vectors(inputs) if inputs else np.zeros((0, embedder.width), np.float32)
    for size, of_size in nearest.items():
      of_size.add(vectors[:, :size])
    return []

  stream.answer(data.corpus, prepare, compute, batch_size=batch_size, total=len(data.ids))
  return [retrieval.with_copies(*of_size.results(), np.asarray(number_of)) for of_size in nearest.values()]


def _system_columns() -> list[tables.Column]:
  return [tables.text_column("model", "model"), tables.Column("size", lambda row: str(row["size"] or "-"))]


def _percent(value: float) -> str:
  return f"{100 * value:.2f}"


def _percent_column(header: str, key: str) -> tables.Column:
  return tables.Column(header, lambda row: _percent(row[key]))


def _difference(row: tables.Row) -> str:
  if "difference" not in row:
    return ""
  width = row["half_interval"]
  return f"{100 * row['difference']:+.2f}" + ("" if width is None else f" ± {_percent(width)}")
