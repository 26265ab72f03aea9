"""Reads a user's files for the embedding stage: chooses columns, and tokenises pairs, scores or texts."""

import dataclasses
import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from data import rows
from data.errors import ConfigError, DataError, counted, did_you_mean, listed
from data.glue import fraction_rows
from data.rows import Row
from data.rows.values import as_list, as_number, is_missing, plain_text, replaced
from data.vocabulary import Vocabulary
from finetune.search import examples as user_examples
from finetune.search.examples import add_to_digest
from pretrain.embed.schema import SIDES, EmbeddingSchema
from pretrain.export.task_fields import CHECKED_ROWS

# Usual names, the likeliest first; case does not count. A file with two columns needs none of them.
FIRST = ("query", "anchor", "question", "question1", "sentence1", "text1", "text_a", "sentence_a", "premise")
FIRST += ("inputs", "name", "title", "#1 string", "text", "sentence")
SECOND = ("positive", "passage", "pos", "answer", "question2", "sentence2", "text2", "text_b", "sentence_b")
SECOND += ("hypothesis", "document", "context", "targets", "definition", "description", "#2 string")
SECOND += ("text_pair", "text", "sentence")
SCORES = ("relatedness_score", "similarity_score", "similarity", "relatedness", "is_duplicate", "quality")
SCORES += ("score", "label", "labels", "gold_label")
MINED = ("positive_score", "negative_scores")  # cosines that finetune.mine adds; no loss reads them
_IDS = {"id", "_id", "idx", "index", "guid", "qid", "pid", "docid", "pair_id"}  # they are no texts
_NEGATIVES = re.compile(r"negatives?(_\d+)?|neg(_\d+)?|hard_negatives?", re.IGNORECASE)


class TextTable(NamedTuple):
  """Tokenised rows of the stage: a query or first text, its positive, and its negatives."""

  ids: Sequence[np.ndarray]  # of each different text of a side [tokens] int32, with special tokens
  texts: np.ndarray  # [rows, sides] int64, indices in `ids`; -1: the row has fewer negatives
  keys: np.ndarray  # [rows, sides] int32, equal for equal texts, also of the two sides; -1 as above
  scores: np.ndarray  # [rows] float32; zeros without scores

  @property
  def sizes(self) -> np.ndarray:
    """Returns the number of tokens of each text, [rows, sides] int64; 0 where there is none."""
    by_text = np.asarray([*map(len, self.ids), 0], np.int64)
    return by_text[self.texts]


@dataclasses.dataclass(frozen=True)
class StageColumns:
  """The columns of a file of pairs or texts; '' or () where it has none."""

  first: str  # the query, or the first text
  second: str = ""  # the positive, or the second text
  negatives: tuple[str, ...] = ()  # of one text or a list of texts each
  score: str = ""

  def describe(self) -> str:
    """Returns a text such as "query 'name', positive 'text'"."""
    if not self.second:
      return f"text {self.first!r}"
    named = f"query {self.first!r}, positive {self.second!r}"
    named += f", negatives {listed(self.negatives)}" if self.negatives else ""
    return named + (f", score {self.score!r}" if self.score else "")


def find(
  path: str,
  names: Sequence[str],
  *,
  text: str,
  text_pair: str,
  label: str = "",
  flag: str = "--config.data.",
) -> StageColumns:
  """Returns the columns of a file: those that the user named, or guesses for ''.

  A guessed score counts only without negatives. A user who names only a text wants single texts.
  `flag` is how the command's flags of these columns begin.

  Raises:
    ConfigError: the file lacks a column that the user named.
    DataError: no column is known to be the first text, or the labels are those of premises (NLI's classes).
  """
  for field, name in (("text", text), ("text_pair", text_pair), ("label", label)):
    if name and name not in names:
      raise ConfigError(
        f"{flag}{field}={name}: {path} has no such column{did_you_mean(name, names)}; it has {listed(names)}"
      )
  negatives = tuple(name for name in names if _NEGATIVES.fullmatch(name) and name not in (text, text_pair))
  score = label or _first(SCORES, [name for name in names if name not in (text, text_pair)])
  left = [name for name in names if name not in (*negatives, *MINED, score, text_pair)]
  left = [name for name in left if name.lower() not in _IDS]
  score = score if label or not negatives else ""
  if text:
    first, second = text, text_pair
  elif len(left) == 2 and not text_pair:
    is_swapped = _first(FIRST, left) == left[1] and _first(SECOND, left) == left[0]
    first, second = reversed(left) if is_swapped else left
  else:
    first = _first(FIRST, left) or (left[0] if len(left) == 1 else "")
    second = text_pair or _first(SECOND, [name for name in left if name != first])
  if not first:
    raise DataError(
      f"{path}: no column of {listed(names)} is known to be the query; name it and its positive:\n"
      f"  {flag}text=NAME {flag}text_pair=NAME"
    )
  if score and second and not label and first.lower() == "premise":
    raise DataError(
      f"{path}: {score!r} of a premise is a class, and no score; keep the entailments without this column, "
      f"or name the score:\n  {flag}label={score}"
    )
  return StageColumns(first, second, negatives if second else (), score if second else "")


def refuse_classes(path: str, chosen: StageColumns, *, label: str, flag: str = "--config.data.") -> None:
  """Raises DataError if a guessed score is the number of a class that the file names."""
  names = rows.classes(path, chosen.score) if chosen.score and not label else []
  if names:
    shown = ", ".join(f"{number} is {name!r}" for number, name in enumerate(names[:5]))
    raise DataError(
      f"{path}: {chosen.score!r} is a class, and no score ({shown}); keep the pairs that mean the same, "
      f"without this column, or name it if a larger number means more alike:\n  {flag}label={chosen.score}"
    )


def unknown(names: Sequence[str], chosen: StageColumns) -> list[str]:
  """Returns the columns that are neither chosen nor known to be ids, scores or labels."""
  known = {chosen.first, chosen.second, *chosen.negatives, *MINED}
  return [name for name in names if name not in known and name.lower() not in _IDS.union(SCORES)]


def _first(known: Sequence[str], names: Sequence[str]) -> str:
  """Returns the first of the `known` names that a file has, as it spells it; '' if it has none."""
  by_name = {name.lower(): name for name in reversed(names)}
  return next((by_name[name] for name in known if name in by_name), "")


MOST_HELD_OUT = 4_000  # rows: every query is compared with every held-out positive


class TextRow(NamedTuple):
  """The texts of a row: a query or first text, then its positive or second text, then negatives."""

  row: Row
  texts: tuple[str, ...]
  score: float  # as in the file; NaN without one


@dataclasses.dataclass(frozen=True)
class StageData:
  """The data of the embedding stage: tokenised training and development rows, and what they are."""

  kind: str  # 'ranking', 'cosent', 'cosine' or 'simcse'
  train: TextTable
  dev: TextTable
  dev_has_scores: bool
  first: list[list[str]]  # texts of the first development rows, by which an export is checked
  digests: dict[str, str]  # {path: sha256}
  lines: list[str]  # log lines: columns, sizes, truncated texts

  @property
  def digest(self) -> str:
    """Returns the sha256 of all tokens and scores."""
    digest = hashlib.sha256()
    for part in (self.train, self.dev):
      add_to_digest(digest, part.ids, part.texts, part.keys, part.scores)
    return digest.hexdigest()


def load(
  config: Any, vocabulary: Vocabulary, schema: EmbeddingSchema, *, positions: int, download: bool = False
) -> StageData:
  """Reads and tokenises the files of a config of kind 'embedding' for an encoder of so many positions.

  Raises:
    ConfigError: a file lacks a named column, or the objective needs columns that it lacks.
    DataError: a file or a row is invalid; the message names it.
  """
  data, own, path = config.data, config.embedding, config.data.train_file
  rows, names, digest = user_examples.read_file(path, "train", config, download)
  _refuse_no_rows(rows, path)
  named = {"text": data.text, "text_pair": data.text_pair, "label": data.label}
  of_train = find(path, names, **named)
  refuse_classes(path, of_train, label=data.label)
  _refuse_unread(path, rows, names, of_train, config)
  kind = _kind(own.objective, of_train, path)
  if kind == "simcse":
    of_train = StageColumns(of_train.first)
  is_scored = kind in ("cosent", "cosine")
  if data.label and not is_scored:
    raise ConfigError(
      f"data.label={data.label}: embedding.objective={kind!r} reads no scores; use one of\n"
      "  --config.data.label=\n  --config.embedding.objective=cosent"
    )
  of_train = dataclasses.replace(of_train, **({"negatives": ()} if is_scored else {"score": ""}))
  lines = [f"{path}: {of_train.describe()} (--config.data.text, data.text_pair, data.label change them)"]
  digests, read = {path: digest}, [rows]
  bounds = tuple(own.score_range) or ((0.0, 1.0) if kind == "cosine" else ())
  train = _examples(rows, of_train, config, lines, has_scores=is_scored, bounds=bounds)
  _refuse_equal(train, path, kind)
  if data.dev_file:
    rows, names, digests[data.dev_file] = user_examples.read_file(
      data.dev_file, "validation", config, download
    )
    _refuse_no_rows(rows, data.dev_file)
    read.append(rows)
    of_dev = find(
      data.dev_file, names, **{name: value if value in names else "" for name, value in named.items()}
    )
    refuse_classes(data.dev_file, of_dev, label=data.label)
    _refuse_unread(data.dev_file, rows, names, of_dev, config)
    lines.append(f"{data.dev_file}: {of_dev.describe()}")
    has_scores = bool(of_dev.score)
    dev = _examples(rows, of_dev, config, lines, has_scores=has_scores, bounds=tuple(own.score_range))
  else:
    of_dev = of_train
    train, dev = _held_out(train, data.dev_fraction, path)
  lines += [
    replaced(name, count) for name, of in zip(digests, read) if (count := sum(r.replaced for r in of))
  ]
  if data.train_rows and data.train_rows < len(train):
    train = [train[row] for row in fraction_rows(len(train), data.train_rows / len(train), config.seed)]
  if not of_dev.second:
    dev = _halves(dev, data.dev_file or path)
  where = f"from {data.dev_file}" if data.dev_file else "held out by a hash of the text"
  lines.append(f"embedding: {counted(len(train), 'training row')}, {len(dev):,} development rows {where}")
  if not of_dev.second:
    lines.append("embedding: a development text's first half is the query of its second half")
  if kind == "simcse":
    train = [example._replace(texts=example.texts * 2) for example in train]
  parts = [_tokenised(of, vocabulary, schema, positions, lines) for of in (train, dev)]
  first = [list(example.texts[:2]) for example in dev[:CHECKED_ROWS]]
  return StageData(kind, parts[0], parts[1], bool(of_dev.score), first, digests, lines)


def _refuse_no_rows(rows: Sequence[Row], path: str) -> None:
  if not rows:
    raise DataError(f"{path}: no rows below the header; give a file with texts")


def _refuse_unread(
  path: str, rows: Sequence[Row], names: Sequence[str], of: StageColumns, config: Any
) -> None:
  """Raises DataError if single texts would be read from a file that has other columns of text."""
  if of.second or config.data.text or config.embedding.objective == "simcse":
    return
  unread = [name for name in unknown(names, of) if any(_has_text(row.fields.get(name)) for row in rows)]
  if unread:
    raise DataError(
      f"{path}: of its texts only {of.first!r} is known, not {listed(unread)}; name the positive of each row "
      "(and rename columns of negatives to 'negative', 'negative_2', ...), or read single texts:\n"
      f"  --config.data.text={of.first} --config.data.text_pair={unread[0]}\n"
      "  --config.embedding.objective=simcse"
    )


def _has_text(value: Any) -> bool:
  first = value[0] if isinstance(value, list) and value else value
  return isinstance(first, str) and not is_missing(first) and as_number(first) is None


def _kind(asked: str, of_train: StageColumns, path: str) -> str:
  """Returns the objective: the user's, or the one that suits the columns."""
  if asked == "auto":
    return "cosent" if of_train.score else "ranking" if of_train.second else "simcse"
  lacks = "a second text" if asked != "simcse" and not of_train.second else ""
  if asked in ("cosent", "cosine") and of_train.second and not of_train.score:
    lacks = "a score"
  if lacks:
    raise ConfigError(
      f"embedding.objective={asked!r}: {path} has no column of {lacks}; name it:\n"
      f"  --config.data.{'label' if lacks == 'a score' else 'text_pair'}=NAME"
    )
  return asked


def _examples(
  rows: Sequence[Row],
  of: StageColumns,
  config: Any,
  lines: list[str],
  *,
  has_scores: bool,
  bounds: tuple[float, ...],
) -> list[TextRow]:
  """Returns the texts of rows; rows without a text are refused, or skipped with a line.

  Scores outside `bounds`, (least, largest) or (), are refused; within bounds they become 0 to 1.
  """
  needed = [name for name in (of.first, of.second) if name]
  empty = [row for row in rows if any(_is_empty(row.fields.get(name)) for name in needed)]
  if empty:
    shown = ", ".join(f"{row.number:,}" for row in empty[:5]) + (", ..." if len(empty) > 5 else "")
    of_all = f"rows without a text: {len(empty):,} of {len(rows):,}"
    if config.data.empty == "refuse":
      empty[0].refuse(
        f"no text in {' or '.join(map(repr, needed))}; {of_all} ({empty[0].unit} {shown}); add the texts, or "
        "skip these rows:\n  --config.data.empty=skip"
      )
    lines.append(f"{empty[0].source}: skipped {of_all} ({empty[0].unit} {shown})")
  left = {id(row) for row in empty}
  most = config.embedding.negatives
  made = []
  for row in rows:
    if id(row) in left:
      continue
    score = _score_of(row, of.score, bounds) if has_scores else math.nan
    first = user_examples.text_of(row, of.first)
    negatives = [text for name in of.negatives for text in _texts_of(row, name)]
    for second in _texts_of(row, of.second) if of.second else [None]:
      if second is None:
        made.append(TextRow(row, (first,), score))
      else:
        made.append(TextRow(row, (first, second, *negatives[: most or None]), score))
  if not made:
    raise DataError(f"{rows[0].source}: each row lacks a text in {' or '.join(map(repr, needed))}")
  return made


def _is_empty(value: Any) -> bool:
  return is_missing(value) or value == []


def _texts_of(row: Row, column: str) -> list[str]:
  """Returns the texts of a cell: one, a list of texts, or none in an empty cell."""
  value = row.fields.get(column)
  if is_missing(value):
    return []
  listed_texts = as_list(value) if isinstance(value, list) else None
  if listed_texts is None:
    return [user_examples.text_of(row, column)]
  for text in listed_texts:
    if not isinstance(text, str) or not text.strip():
      row.refuse(f"{column!r} has {text!r} in its list; expected texts")
  return list(listed_texts)


def _score_of(row: Row, column: str, bounds: tuple[float, ...]) -> float:
  number = as_number(row.value(column))
  if number is None or not math.isfinite(number):
    row.refuse(f"{column!r} is {row.value(column)!r}, expected a number; correct or remove this row")
  if not bounds:
    return number
  low, high = bounds
  if not low <= number <= high:
    row.refuse(
      f"score {number:g} in {column!r}, expected {low:g} to {high:g}; correct this row, or set the range:\n"
      f"  --config.embedding.score_range={min(low, math.floor(number)):g},{max(high, math.ceil(number)):g}"
    )
  return (number - low) / (high - low)


def _held_out(train: Sequence[TextRow], fraction: float, path: str) -> tuple[list[TextRow], list[TextRow]]:
  """Splits rows into training and about `MOST_HELD_OUT` held-out ones; equal positives stay together."""
  fraction = min(fraction, MOST_HELD_OUT / max(len(train), 1))
  is_out = [user_examples.is_held_out(example.texts[:2][-1], fraction) for example in train]
  return user_examples.split_rows(train, is_out, path, fraction)


def _halves(dev: Sequence[TextRow], path: str) -> list[TextRow]:
  """Returns pairs of the first and second half of each text's words, of texts with at least two words."""
  made = []
  for example in dev:
    words = example.texts[0].split()
    middle = len(words) // 2
    if middle:
      made.append(example._replace(texts=(" ".join(words[:middle]), " ".join(words[middle:]))))
  if len(made) < 2:
    raise DataError(
      f"{path}: fewer than two development texts have several words; give more:\n"
      "  --config.data.dev_file=FILE"
    )
  return made


def _refuse_equal(train: Sequence[TextRow], path: str, kind: str) -> None:
  """Refuses rows that all have the same first or second text: no text would be a negative of another."""
  for side, name in enumerate(("first", "second")[: len(train[0].texts)]):
    texts = {example.texts[side].strip() for example in train}
    if len(texts) == 1 < len(train) and kind in ("ranking", "simcse"):
      raise DataError(
        f"{path}: all {counted(len(train), 'training row')} have the same {name} text, "
        f"{next(iter(texts))[:40]!r}; expected different ones"
      )
  scores = {example.score for example in train}
  if len(scores) == 1 < len(train) and kind in ("cosent", "cosine"):
    raise DataError(f"{path}: all training rows have the same score; nothing to learn")


def _tokenised(
  examples: Sequence[TextRow],
  vocabulary: Vocabulary,
  schema: EmbeddingSchema,
  positions: int,
  lines: list[str],
) -> TextTable:
  """Tokenises rows; each different text of a side is tokenised once."""
  sides = max(len(example.texts) for example in examples)
  has_sides = len({(schema.prefix(side), schema.length(side, positions)) for side in SIDES}) > 1
  keys: dict[str, int] = {}
  number: dict[tuple[str, str], int] = {}
  table = np.full((2, len(examples), sides), -1, np.int64)
  for row, example in enumerate(examples):
    for side, text in enumerate(example.texts):
      name = SIDES[min(side, 1)] if has_sides else "passage"
      table[0, row, side] = number.setdefault((name, text), len(number))
      table[1, row, side] = keys.setdefault(plain_text(text), len(keys))
  ids: list[Any] = [None] * len(number)
  for side in dict.fromkeys(side for side, _ in number):
    of_side = [(text, at) for (asked, text), at in number.items() if asked == side]
    length, cut = schema.length(side, positions), 0
    encoded = vocabulary.encode_batch([schema.prefix(side) + text for text, _ in of_side])
    for (_, at), tokens in zip(of_side, encoded):
      whole = vocabulary.with_special_ids(tokens, max_length=length)
      cut += len(tokens) + 2 > length
      ids[at] = np.asarray(whole, np.int32)
    if cut:
      what = ("queries" if side == "query" else "passages") if has_sides else "texts"
      lines.append(f"embedding: truncated to {length} tokens: {cut:,} of {len(of_side):,} different {what}")
  scores = np.nan_to_num(np.asarray([example.score for example in examples], np.float32))
  return TextTable(ids, table[0], table[1].astype(np.int32), scores)
