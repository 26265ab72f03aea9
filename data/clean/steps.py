"""Parses `--clean` into steps; a step is a rule about one document, a user's function, or compares all
documents."""

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable

from data import command, errors, files, user_module
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
