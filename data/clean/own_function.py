"""Imports a user's cleaning step: a Python function, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."""

import functools
from collections.abc import Callable

from data import errors, files, user_module

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
