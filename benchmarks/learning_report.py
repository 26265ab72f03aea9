"""Tables and curves of `benchmarks.learning`."""

import pathlib


def report(directory: pathlib.Path) -> str:
  return ""
