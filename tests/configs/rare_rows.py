"""Which rows of the ablation tables every run of the suite checks."""

from collections.abc import Collection

import pytest


def marked(names: Collection[str], rare: Collection[str]) -> list:
  """Rows for `parametrize`; the `rare` ones, which differ from another by sizes alone, are for nightly."""
  assert not set(rare) - set(names)
  return [pytest.param(name, marks=pytest.mark.nightly) if name in rare else name for name in names]
