"""Tables of what is refused: every failing row of a table is shown, not the first alone."""

from collections.abc import Callable, Iterable

from data.errors import ConfigError, DataError


def failing(rows: Iterable[tuple], run: Callable, error: type[Exception] = DataError) -> str:
  """Calls run(*inputs) of rows (*inputs, word): a line for each with another error, or without `word` in it.

  `ways` that a message ends with are lines that begin with two spaces: what the user types.
  """
  failures = []
  for *inputs, word in rows:
    try:
      run(*inputs)
    except (ConfigError, DataError) as found:
      ways = str(found).splitlines()[1:]
      if type(found) is error and word in str(found) and all(way.startswith("  ") for way in ways):
        continue
      failures.append(f"{inputs}: {word!r} is not in {type(found).__name__}: {found}")
    else:
      failures.append(f"{inputs}: nothing was refused, expected {word!r}")
  return "\n".join(failures)


def failing_commands(rows: Iterable[tuple], run: Callable[..., int], capsys) -> str:
  """Calls run(*inputs) of rows (*inputs, exit code, word), which returns the code and says the word."""
  failures = []
  for *inputs, code, word in rows:
    capsys.readouterr()
    found, said = run(*inputs), capsys.readouterr().err
    if found != code or word not in said or "Traceback" in said:
      failures.append(f"{inputs}: {found}, expected {code} and {word!r}: {said}")
  return "\n".join(failures)
