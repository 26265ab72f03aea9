"""Makes tables and curves of `benchmarks.learning`: first and last values, baselines, twins."""

import collections
import json
import pathlib

import numpy as np

from data.errors import DataError
from data.page.plot import Curve, Plot
from data.tables import Cells

# (figure, its baseline) for single runs that have them.
FIGURES = (
  ("masked_lm_loss", "unigram_cross_entropy"),
  ("generator_loss_head_0", "unigram_cross_entropy"),
  ("generator_loss_head_1", "unigram_cross_entropy"),
  ("generator_loss_head_2", "unigram_cross_entropy"),
  ("rtd_auc", "rtd_auc_baseline"),
  ("rtd_balanced_accuracy_at_prior", "rtd_balanced_accuracy_at_prior_baseline"),
  ("replace_rate", None),
  ("clm_top1_replaced", "clm_top1_replaced_baseline"),
  ("sequence_cosine_gap", None),
  ("sequence_retrieval_top1", "sequence_retrieval_top1_baseline"),
  ("contextual_score", None),
)
# (run, its twin, figures compared at equal steps)
TWINS = (
  ("coco_lm", "coco_lm_no_scl", ("sequence_cosine_gap", "sequence_retrieval_top1")),
  ("taco", "bert", ("contextual_score",)),
  ("amos", "amos_no_reversal", tuple(f"mixture_weight_head_{k}" for k in range(3))),
)
CURVES = (
  "masked_lm_loss",
  "generator_loss_head_0",
  "rtd_auc",
  "clm_top1_replaced",
  "sequence_cosine_gap",
  "contextual_score",
)

Lines = list[dict[str, float]]


def read(directory: pathlib.Path) -> dict[str, list[Lines]]:
  """Returns {run: lines of each seed} of all results in a directory; DataError if there are none."""
  runs: dict[str, list[Lines]] = collections.defaultdict(list)
  for path in sorted(directory.glob("*-seed*.jsonl")):
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if lines:
      runs[lines[0]["name"]].append(lines)
  if not runs:
    raise DataError(
      f"no results in {directory}; to make some:\n  python -m benchmarks.learning run --output={directory}"
    )
  return dict(runs)


def report(directory: pathlib.Path) -> str:
  """Returns Markdown tables of the results of `benchmarks.learning run`; draws learning_*.png there."""
  runs = read(directory)
  sections = [_single(name, seeds) for name, seeds in runs.items()]
  sections += [_twin(runs, *twin) for twin in TWINS if twin[0] in runs and twin[1] in runs]
  for plot in (_plot(runs, name) for name in CURVES):
    if plot.curves:
      plot.write(directory)
  return "\n\n".join(sections)


def _single(name: str, seeds: list[Lines]) -> str:
  last = seeds[0][-1]
  title = f"### {name}: {last['step']:,} steps, {last['tokens']:,} tokens, {len(seeds)} seed(s)"
  rows = []
  for figure, baseline in FIGURES:
    if figure in last:
      starts, ends = ([lines[at][figure] for lines in seeds] for at in (0, -1))
      beside = "" if baseline is None else f"{last[baseline]:.3f}"
      rows.append((figure, _spread(starts), _spread(ends), beside))
  return f"{title}\n\n{Cells(('held-out figure', 'start', 'end', 'trivial baseline'), rows).as_markdown()}"


def _spread(values: list[float]) -> str:
  mean = f"{np.mean(values):.3f}"
  return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def _twin(runs: dict[str, list[Lines]], name: str, twin: str, figures: tuple[str, ...]) -> str:
  rows = []
  others = {lines[0]["seed"]: lines for lines in runs[twin]}
  for figure in figures:
    for lines in runs[name]:
      other = {line["step"]: line for line in others.get(lines[0]["seed"], [])}
      shared = [line for line in lines if line["step"] in other and figure in line]
      if shared:
        mine, theirs = shared[-1][figure], other[shared[-1]["step"]][figure]
        step, seed = shared[-1]["step"], lines[0]["seed"]
        values = (f"{mine:.3f}", f"{theirs:.3f}", f"{mine - theirs:+.3f}")
        rows.append((figure, str(seed), f"{step:,}", *values))
  table = Cells(("figure", "seed", "step", name, twin, "difference"), rows)
  return f"### {name} against {twin}, at equal steps\n\n{table.as_markdown()}"


def _plot(runs: dict[str, list[Lines]], name: str) -> Plot:
  curves = []
  for run, seeds in runs.items():
    for lines in seeds:
      points = [(line["tokens"] / 1e6, line[name]) for line in lines if name in line]
      if points:
        curves.append(Curve(run, *np.asarray(points).T, has_dots=True))
  if curves and name.endswith(("loss", "head_0")):
    level = next(iter(runs.values()))[0][-1]["unigram_cross_entropy"]
    ends = np.asarray([0.0, max(curve.x[-1] for curve in curves)])
    curves.append(Curve("unigram", ends, np.full(2, level), is_dashed=True))
  return Plot(f"learning_{name}", name, "million tokens", "", curves)
