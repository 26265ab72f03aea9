"""Applies the steps of cleaning to the documents of a unit, and reports the dropped documents."""

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data import errors, files, sources
from data.clean import duplicates, steps

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
  code: str = ""  # `steps.code_digest` in the process of the command

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
  for number, step in enumerate(steps.parse(cleaning.listed)):
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
  if steps.code_digest(cleaning.listed) != cleaning.code:
    raise errors.StorageError(
      f"--clean={cleaning.listed}: a worker has another version of your function; restart the workers, then "
      "run the same command again"
    )
  unit_name = duplicates.place(unit)
  rules = [
    (step, _rule(cleaning, number, step, unit))
    for number, step in enumerate(steps.parse(cleaning.listed)[:until])
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
  cleaning: Cleaning, number: int, step: steps.Step, unit: sources.Unit
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
  return {label: counts.get(_DROPPED_BY + label, 0) for label in steps.labels(listed)}


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
