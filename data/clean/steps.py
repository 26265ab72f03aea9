"""Parses `--clean` into steps, applies them to the documents of a unit, and reports what they dropped.

A step is a rule about one document, a user's function, or compares all documents.
"""

import collections
import dataclasses
import functools
import importlib.util
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data import command, errors, files, sources, user_module
from data.clean import duplicates, rules

MOST_REASON = 100  # characters; a longer string is probably a document returned by mistake


def find(step: str) -> Callable[[list[str]], list[str] | str]:
  """Returns the function that a step names, wrapped to check its results; ConfigError if it is missing."""
  file, _, name = step.rpartition(":")
  module = user_module.import_module(file, flag="--clean")
  function = getattr(module, name, None)
  if not callable(function):
    there = [known for known, value in vars(module).items() if callable(value)]
    hint = errors.did_you_mean(name, there) or f"; define `def {name}(document)` there"
    raise errors.ConfigError(f"--clean={step}: {file} has no function {name!r}{hint}")
  return functools.partial(_checked, function)


def digest(step: str) -> str:
  """Returns the sha256 of the file that defines a step's function; 'no file' if there is none."""
  return _digest(step.rpartition(":")[0])


@functools.cache  # the digest of the code that was imported, even if the file changes later
def _digest(module: str) -> str:
  path = user_module.import_module(module, flag="--clean").__file__
  return files.sha256(path) if path else "no file"


def _checked(function: Callable, document: list[str]) -> list[str] | str:
  """Returns the result of a user's function; ValueError if it is neither a document nor a reason."""
  answer = function(list(document))
  if answer == []:
    return "no paragraph left"
  if isinstance(answer, str) and 0 < len(answer.strip()) <= MOST_REASON and "\n" not in answer:
    return answer
  if isinstance(answer, list) and all(isinstance(paragraph, str) for paragraph in answer):
    return answer
  shown = f"a text of {len(answer):,} characters" if isinstance(answer, str) else repr(answer)[:40]
  raise ValueError(
    f"returned {shown}; expected a list of paragraphs, or a reason of 1 to {MOST_REASON} letters on a line"
  )


Rule = Callable[[list[str]], list[str] | str]  # document -> cleaned document, or the reason to drop it

NAMES = ("exact", "near", "language", "length", "words", "repetition", "symbols", "stop_words")
HELP = """\
steps of --clean, separated by commas, in the order in which they run:
  exact                drops all but the first of equal documents
  near[:0.8]           drops all but the first of documents that share at least 80 % of their 5-word sequences
  language:en+de       keeps documents in these languages, as CLD2 detects them
  length:200[-90000]   keeps documents of at least, and at most, so many characters
  words[:50-100000]    keeps documents of at least, and at most, so many words
  repetition           drops documents that repeat lines or word sequences (Gopher's rules)
  symbols              drops documents with many symbols, bullets or unusual words (Gopher's rules)
  stop_words           drops documents without two common English words (Gopher's rule)
  mine.py:keep         calls your function: list of paragraphs -> such a list, or the reason to drop it
near and language need `pip install -r requirements-clean.txt`. exact and near each read the text once more"""


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of cleaning: either a `rule` about one document or a `sketch` that compares all documents."""

  label: str  # as written in `--clean`
  rule: Rule | None = None
  sketch: duplicates.Sketch | None = None
  code: str = ""  # digest of the file of a user's function

  @property
  def is_own(self) -> bool:
    """True if the rule is a user's function."""
    return bool(self.code)


@functools.cache
def parse(listed: str) -> tuple[Step, ...]:
  """Returns the steps that `--clean` lists; ConfigError if one is unknown or has an invalid argument."""
  return tuple(map(_step, labels(listed)))


def labels(listed: str) -> list[str]:
  """Returns the steps that `--clean` lists as strings, without validating them."""
  return [name.strip() for name in command.names(listed)]


def code_digest(listed: str) -> str:
  """Returns a digest of the code of the user's functions among the steps, '' if there are none.

  It covers the code that this process imported: a worker may have imported an older file.
  """
  own = [step.code for step in parse(listed) if step.is_own]
  return files.digest_json(own) if own else ""


def _step(item: str) -> Step:
  name, colon, argument = item.partition(":")
  if item in ("exact", "repetition", "symbols", "stop_words"):
    plain = {"repetition": rules.repetition, "symbols": rules.symbols, "stop_words": rules.stop_words}
    return Step(item, plain.get(item), duplicates.EXACT if item == "exact" else None)
  if name == "near":
    _need("rensa", item)
    return Step(item, sketch=duplicates.near(_threshold(item, argument) if colon else 0.8))
  if name == "language":
    _need("pycld2", item)
    return Step(item, functools.partial(rules.language, wanted=rules.codes(argument)))
  if name in rules.SIZES:
    least, most = _range(item, argument if colon or name == "length" else "50-100000")
    return Step(item, functools.partial(rules.SIZES[name], least=least, most=most))
  if colon and argument.isidentifier() and ("." in name or "/" in name):
    return Step(item, find(item), code=digest(item))
  if name in NAMES:
    raise errors.ConfigError(f"--clean={item}: {name} has no argument; write {name}")
  raise errors.ConfigError(f"--clean: {errors.unknown('step', name, NAMES)}, FILE.py:FUNCTION")


def _need(package: str, item: str) -> None:
  if importlib.util.find_spec(package) is None:
    raise errors.ConfigError(
      f"--clean={item} needs {package}, not installed here; install it:\n"
      "  pip install -r requirements-clean.txt"
    )


def _threshold(item: str, argument: str) -> float:
  lowest = duplicates.LEAST_THRESHOLD
  try:
    value = float(argument)
  except ValueError:
    value = math.nan
  if not lowest <= value <= 1:
    raise errors.ConfigError(f"--clean={item}: expected a similarity from {lowest} to 1, as in near:0.8")
  return value


def _range(item: str, argument: str) -> tuple[int, float]:
  least, dash, most = argument.partition("-")
  is_number = least.isdecimal() and (most.isdecimal() or not dash)
  low, high = (int(least), int(most) if dash else math.inf) if is_number else (1, 0)
  if low > high:
    raise errors.ConfigError(
      f"--clean={item}: expected a least number, or a least and a most, as in length:200 or length:200-90000"
    )
  return low, high


Read = Callable[[sources.Unit], Iterable[list[str]]]

READ = "documents_read"  # name of the count of documents before cleaning
_DROPPED_BY = "dropped_by "  # begins the name of a step's count
EXAMPLES = "dropped.jsonl"  # name of the report in the output directory
EXAMPLES_OF_UNIT = 20  # for each step
EXAMPLES_OF_STEP = 100  # of all units together
SHOWN = 200  # characters of a dropped document


@dataclasses.dataclass(frozen=True)
class Cleaning:
  """The cleaning steps in `--clean`, and the directory with the lists of duplicate documents."""

  listed: str = ""  # the value of `--clean`; '': no steps
  directory: str = ""
  code: str = ""  # `code_digest` in the process of the command

  def lists(self, number: int) -> pathlib.Path:
    """Returns the directory of the lists of duplicates that step `number` drops."""
    return pathlib.Path(self.directory) / f"step-{number}"


OFF = Cleaning()


@dataclasses.dataclass(frozen=True)
class Dropped:
  """Counts of the documents of a unit that each cleaning step dropped; the first ones as examples."""

  counts: collections.Counter
  examples: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  def add(self, label: str, why: str, place: str, index: int, document: Sequence[str]) -> None:
    """Counts a document that step `label` dropped; stores the start of its first EXAMPLES_OF_UNIT."""
    self.counts[_DROPPED_BY + label] += 1
    if self.counts[_DROPPED_BY + label] <= EXAMPLES_OF_UNIT:
      # Text, and names of files, may have parts that are not UTF-8.
      texts = ("\n".join(document)[:SHOWN], place, why)
      text, place, why = (each.encode("utf-8", "replace").decode() for each in texts)
      example = {"step": label, "reason": why, "source": place, "document": index + 1, "text": text}
      self.examples.append(example)


def find_duplicates(
  cleaning: Cleaning, read: Read, units: Sequence[sources.Unit], pool: duplicates.Pool
) -> None:
  """Writes the lists of duplicate documents for the steps that drop them, unless the lists exist."""
  for number, step in enumerate(parse(cleaning.listed)):
    if step.sketch:
      reach = functools.partial(reaching, cleaning, read, number)
      duplicates.find(step.sketch, reach, cleaning.lists(number), units, pool, name=step.label)


def reaching(
  cleaning: Cleaning, read: Read, number: int, unit: sources.Unit
) -> Iterator[tuple[int, list[str]]]:
  """Yields (index in the unit, document) of the documents that pass all steps before step `number`."""
  return _clean(cleaning, unit, read(unit), Dropped(collections.Counter()), until=number)


def documents(
  cleaning: Cleaning, unit: sources.Unit, read: Iterable[list[str]], dropped: Dropped
) -> Iterator[list[str]]:
  """Yields the cleaned documents of a unit; `dropped` records the others.

  DataError: a user's function failed; the message names file, document and reason.
  """
  if not cleaning.listed:
    yield from read
    return
  for _, document in _clean(cleaning, unit, read, dropped, until=None):
    yield document


def _clean(
  cleaning: Cleaning, unit: sources.Unit, read: Iterable[list[str]], dropped: Dropped, *, until: int | None
) -> Iterator[tuple[int, list[str]]]:
  if code_digest(cleaning.listed) != cleaning.code:
    raise errors.StorageError(
      f"--clean={cleaning.listed}: a worker has another version of your function; restart the workers, then "
      "run the same command again"
    )
  unit_name = duplicates.place(unit)
  rules = [
    (step, _rule(cleaning, number, step, unit)) for number, step in enumerate(parse(cleaning.listed)[:until])
  ]
  for index, document in enumerate(read):
    dropped.counts[READ] += bool(document)
    for step, rule in rules if document else ():
      try:
        answer = rule(index, document)
      except Exception as error:
        if not step.is_own:
          raise
        reason = errors.named_reason(error, most=200)
        raise errors.DataError(
          f"{unit_name}: document {index + 1}: --clean={step.label} failed ({reason}); correct this function"
        ) from error
      if isinstance(answer, str):
        dropped.add(step.label, answer, unit_name, index, document)
        break
      document = answer
    else:
      yield index, document


def _rule(
  cleaning: Cleaning, number: int, step: Step, unit: sources.Unit
) -> Callable[[int, list[str]], list[str] | str]:
  if step.rule is None:
    return _Duplicates(cleaning.lists(number), unit)
  rule = step.rule
  return lambda _, document: rule(document)


class _Duplicates:
  """A cleaning step that drops a unit's documents on its list of duplicates; call it in document order."""

  def __init__(self, directory: pathlib.Path, unit: sources.Unit):
    self._directory = directory
    self._list = np.load(duplicates.list_of(self._directory, unit), allow_pickle=False)
    self._next = 0

  def __call__(self, index: int, document: list[str]) -> list[str] | str:
    if self._next == self._list.size or self._list["index"][self._next] != index:
      return document
    entry = self._list[self._next]
    self._next += 1
    return f"duplicate of document {entry['of'] + 1} of {self._places[entry['unit']]}"

  @functools.cached_property
  def _places(self) -> list[str]:
    return json.loads((self._directory / duplicates.PLACES).read_text())


def write_examples(path: pathlib.Path, of_units: Iterable[Iterable[Mapping[str, Any]]]) -> None:
  """Writes dropped documents as JSON lines, at most EXAMPLES_OF_STEP per cleaning step, in unit order."""
  written: collections.Counter = collections.Counter()
  lines = []
  for example in (example for examples in of_units for example in examples):
    written[example["step"]] += 1
    if written[example["step"]] <= EXAMPLES_OF_STEP:
      lines.append(json.dumps(example, ensure_ascii=False) + "\n")
  files.write_atomically(path, "".join(lines))


def dropped_by(listed: str, counts: Mapping[str, int]) -> dict[str, int]:
  """Returns {step: number of documents that it dropped}, in the order of the steps."""
  return {label: counts.get(_DROPPED_BY + label, 0) for label in labels(listed)}


def summary(listed: str, counts: Mapping[str, int]) -> list[str]:
  """Returns a line for each step: the number of documents that it dropped, and their share of all."""
  total = max(1, counts.get(READ, 0))
  dropped = dropped_by(listed, counts).items()
  return [f"{label} dropped {errors.counted(of, 'document')} ({of / total:.1%})" for label, of in dropped]


def refuse_nothing_left(listed: str, counts: Mapping[str, int]) -> None:
  """Raises DataError if the steps dropped every document; the message names the step that dropped most."""
  dropped = dropped_by(listed, counts)
  if dropped and sum(dropped.values()) == counts.get(READ, 0) > 0:
    label = max(dropped, key=lambda label: dropped[label])
    raise errors.DataError(
      f"--clean={listed} dropped all {counts[READ]:,} documents, {label} {dropped[label]:,} of them; remove "
      f"{label} or relax its limits"
    )
