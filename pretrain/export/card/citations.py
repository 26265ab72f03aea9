"""Which papers a model card cites: those of the ideas that the config switches on, and that of the recipe."""

import re
from collections.abc import Mapping
from typing import Any

from pretrain.settings import papers
from pretrain.settings.objectives import switched_on


def citations(config: Mapping[str, Any]) -> list[str]:
  """Papers to cite, each once.

  Args:
    config: of the checkpoint, as a dict. An imported one has no objective: its own paper is not known here.
  """
  found = {objective.paper for objective in switched_on(config["objectives"]).values()}
  if config["corruption"]["kind"] == "generator" and config["generator"]["mixture"] != "none":
    found.add(papers.AMOS)
  # A row of an ablation may have lost what its paper is known by.
  recipe = config["recipe"]
  found |= {paper for name, paper in papers.OF_RECIPES.items() if re.match(rf"{name}(?![a-z])", recipe)}
  known = [*papers.OF_RECIPES.values(), *sorted(found)]
  return [paper for paper in dict.fromkeys(known) if paper in found]
