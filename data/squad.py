"""Reads SQuAD 1.1 and 2.0 as dataclasses, from the official JSON (also gzipped) or from TFDS."""

import dataclasses
import json
import logging
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from data import errors, files, tfds_reader
from data.rows import values

logger = logging.getLogger(__name__)

_OFFICIAL_NAME = re.compile(r"(train|dev)-v(1\.1|2\.0)\.json(?:\.gz)?")
_TFDS_NAMES = {"1.1": "squad/v1.1", "2.0": "squad/v2.0"}


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer: its text, its start in the context in characters, and whether the context has it there."""

  text: str
  start: int
  is_located: bool


@dataclasses.dataclass(frozen=True)
class Question:
  """A question about a paragraph; if `is_impossible`, the paragraph has no answer and `answers` is empty."""

  id: str
  title: str
  context: str
  question: str
  answers: tuple[Answer, ...]
  is_impossible: bool


@dataclasses.dataclass(frozen=True)
class SquadFile:
  """The questions of a file, with its version and name."""

  version: str  # '2.0' if questions have the field `is_impossible`, else '1.1'
  questions: list[Question]  # in the order of the file
  source: str  # the file or data set, for messages


def read(path: str | os.PathLike) -> SquadFile:
  """Reads a SQuAD file in the official layout.

  DataError: the file is missing, damaged or not JSON; a field is missing or of the wrong type; an id occurs
  twice; an answerable question has no answer, or an impossible one has answers. The message names article,
  paragraph and question, counted from 1.

  Source: rajpurkar.github.io/SQuAD-explorer, train-v2.0.json.
  """
  path = pathlib.Path(path).expanduser()
  value = _json(path)
  questions: list[Question] = []
  is_v2 = False
  for a, article in enumerate(_field(value, "data", list, str(path)), start=1):
    location = f"{path}: article {a}"
    title = _field(article, "title", str, location) if "title" in _object(article, location) else ""
    for p, paragraph in enumerate(_field(article, "paragraphs", list, location), start=1):
      location = f"{path}: article {a}, paragraph {p}"
      context = _field(paragraph, "context", str, location)
      for q, entry in enumerate(_field(paragraph, "qas", list, location), start=1):
        is_v2 |= "is_impossible" in _object(entry, f"{location}, question {q}")
        questions.append(_question(entry, title, context, f"{location}, question {q}"))
  return _file("2.0" if is_v2 else "1.1", questions, str(path))


def read_tfds(directory: str, version: str, split: str, *, download: bool = False) -> SquadFile:
  """Reads SQuAD '1.1' or '2.0', split 'train' or 'dev', from a TFDS data_dir ('': TFDS's default).

  `download` lets TFDS download a missing data set. ConfigError: unknown version or split. DataError: the data
  set is missing, which is reported before TensorFlow is loaded, or damaged.
  """
  if version not in _TFDS_NAMES or split not in ("train", "dev"):
    raise errors.ConfigError(
      f"no SQuAD {version!r} {split!r}; versions are {', '.join(_TFDS_NAMES)}, splits train, dev"
    )
  name = _TFDS_NAMES[version]
  if not download and tfds_reader.find(directory, name) is None:
    raise errors.DataError(
      f"no TFDS data set {name} in {tfds_reader.place(directory)}; name the official train-v{version}.json "
      f"and dev-v{version}.json instead, or let TFDS download it:\n  --download"
    )
  tfds_split = tfds_reader.split_name(split)
  (examples,) = tfds_reader.read(directory, [(name, tfds_split)], download=download)
  source = f"{tfds_reader.find(directory, name)} {tfds_split}"
  questions = []
  for number, example in enumerate(examples, start=1):
    pairs = zip(example["answers"]["text"], example["answers"]["answer_start"])
    entry = {**example, "answers": [{"text": text, "answer_start": start} for text, start in pairs]}
    place = f"{source}: example {number}"
    questions.append(_question(entry, example["title"], example["context"], place))
  return _file(version, questions, source)


def read_pair(
  train_file: str, dev_file: str, directory: str, *, group: str = "squad", download: bool = False
) -> tuple[SquadFile, SquadFile]:
  """Reads a training and a development file; finds both before it reads one.

  Each is a file in `directory` or a path; '.gz' may be missing. If there is none, 'train-v2.0.json' and other
  official names are read from TFDS, in the data_dir `directory` ('': TFDS's default). Errors name fields of
  `group`. DataError: a file is missing or damaged, or the versions differ.
  """
  names = {f"{group}.train_file": train_file, f"{group}.dev_file": dev_file}
  readers = [_reader(field, name, directory, download=download) for field, name in names.items()]
  train, dev = (read() for read in readers)
  if train.version != dev.version:
    raise errors.DataError(
      f"{group}.train_file {train.source} is SQuAD {train.version}, but {group}.dev_file {dev.source} is "
      f"SQuAD {dev.version}; use one version:\n"
      f"  --config.{group}.train_file=FILE\n  --config.{group}.dev_file=FILE"
    )
  return train, dev


def _reader(field: str, name: str, directory: str, *, download: bool) -> Callable[[], SquadFile]:
  """Finds one file of SQuAD and returns the function that reads it."""
  asked = pathlib.Path(name).expanduser()
  paths = [*([pathlib.Path(directory).expanduser() / asked] if directory else []), asked]
  looked = [path for plain in dict.fromkeys(paths) for path in (plain, plain.with_name(f"{plain.name}.gz"))]
  for path in looked:
    if path.is_file():
      return lambda: read(path)
  official = _OFFICIAL_NAME.fullmatch(name)
  searched = [f"{path} (or .gz)" for path in looked[::2]]
  ways = f"\n  --config.{field}=FILE\n  --config.data.directory=DIR"
  if official:
    split, version = official.groups()
    if download or tfds_reader.find(directory, f"squad/v{version}"):
      return lambda: read_tfds(directory, version, split, download=download)
    searched.append(f"TFDS's squad/v{version} in {tfds_reader.place(directory)}")
    ways += "\n  --download"
  advice = f"name it or its folder{', or let TFDS download it' if official else ''}"
  raise errors.DataError(f"{field}={name!r}: no such file; looked for {', '.join(searched)}; {advice}:{ways}")


def _file(version: str, questions: list[Question], source: str) -> SquadFile:
  if not questions:
    raise errors.DataError(f"{source}: no questions; is this a complete SQuAD file?")
  seen: set[str] = set()
  for question in questions:
    if question.id in seen:
      raise errors.DataError(
        f"{source}: id {question.id!r} twice (the second in {question.title!r}); change one of them"
      )
    seen.add(question.id)
  return SquadFile(version, questions, source)


def _question(entry: dict[str, Any], title: str, context: str, entry_path: str) -> Question:
  is_impossible = "is_impossible" in entry and _field(entry, "is_impossible", bool, entry_path)
  answers = []
  for number, answer in enumerate(_field(entry, "answers", list, entry_path), start=1):
    where = f"{entry_path}, answer {number}"
    text = _field(answer, "text", str, where)
    start = _field(answer, "answer_start", int, where)
    is_located = bool(text) and start >= 0 and context.startswith(text, start)
    answers.append(Answer(text, start, is_located))
  if bool(answers) == is_impossible:
    found = errors.counted(len(answers), "answer") if answers else "no answer"
    expected = "none for an impossible question" if is_impossible else "at least one for an answerable one"
    raise errors.DataError(f"{entry_path}: {found}, expected {expected}; mend `answers` or `is_impossible`")
  has_number = type(entry.get("id")) is int  # GermanQuAD, exports of Haystack
  question_id = str(entry["id"]) if has_number else _field(entry, "id", str, entry_path)
  return Question(
    question_id, title, context, _field(entry, "question", str, entry_path), tuple(answers), is_impossible
  )


def _object(value: Any, place: str) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise errors.DataError(
      f"{place}: a {type(value).__name__}, expected an object with fields; correct the file"
    )
  return value


def _field(value: Any, name: str, kind: type, where: str) -> Any:
  field = _object(value, where).get(name)
  if isinstance(field, kind) and (kind is not int or not isinstance(field, bool)):
    return field
  what = f"{name!r} is a {type(field).__name__}" if name in value else f"no {name!r}"
  raise errors.DataError(
    f"{where}: {what}, expected a {kind.__name__}; is this the official layout of SQuAD?"
  )


def _json(path: pathlib.Path) -> Any:
  if not path.exists():
    raise errors.DataError(
      f"{path} does not exist; get train-v2.0.json and dev-v2.0.json (or v1.1) from the SQuAD site"
    )
  try:
    value, replaced = values.read_json(files.read_text(path))
  except json.JSONDecodeError as error:
    raise errors.DataError(
      f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno}); expected SQuAD's form, "
      "{'data': [{'paragraphs': [...]}, ...]}; copy a damaged file again"
    ) from error
  except RecursionError as error:
    raise errors.DataError(
      f"{path}: not SQuAD's JSON ({errors.reason(error)}); copy the file again"
    ) from error
  if replaced:
    logger.warning(values.replaced(str(path), replaced))
  return value
