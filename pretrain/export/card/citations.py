"""Which papers a model card cites: those of the ideas that the config switches on, and that of the recipe."""

import re
from collections.abc import Mapping
from typing import Any

from pretrain.settings.objectives import OBJECTIVES
from pretrain.settings.papers import Paper


def citations(config: Mapping[str, Any]) -> list[str]:
  """Papers to cite, each once; none for an imported checkpoint, whose own paper is not known here."""
  papers = {OBJECTIVES[name].paper for name, fields in config["objectives"].items() if fields["weight"]}
  if config["corruption"]["kind"] == "generator" and config["generator"]["mixture"] != "none":
    papers.add(Paper.AMOS)
  # A row of an ablation may have lost what its paper is known by.
  recipe = config["recipe"]
  papers |= {paper for paper in Paper if re.match(rf"{paper.name.lower()}(?![a-z])", recipe)}
  return [str(paper) for paper in dict.fromkeys([*Paper, *sorted(papers)]) if paper in papers]
