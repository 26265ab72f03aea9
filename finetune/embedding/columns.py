"""Chooses the columns of a file of pairs: query, positive, negatives, score. Imports no jax."""

import dataclasses
import re
from collections.abc import Sequence

from data import rows
from data.errors import ConfigError, DataError, did_you_mean, listed

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
