"""The speed that a plan counts with: rates of measured steps, else half of a device's peak."""

import statistics
from typing import NamedTuple

from ml_collections import ConfigDict

from pretrain.mesh import chips
from pretrain.plan import flops
from pretrain.settings.objectives import switched_on
from pretrain.settings.run import batch_sizes


class Rate(NamedTuple):
  """A training step that was measured on one NVIDIA H200: docs/results/speed.md."""

  recipe: str
  method: tuple[str, ...]  # objectives, and the generators' mixture: see `_method`
  norm_placement: str  # 'post': BERT's backbone; 'pre': ModernBERT's
  flops: float  # nominal FLOP/s: tokens per second x training FLOP per token


MEASURED = (
  Rate("roberta_base", ("mlm", "none"), "post", 611_000 * 589.5e6),
  Rate("coco_lm_base", ("clm", "rtd", "scl", "none"), "post", 260_000 * 1375.1e6),
  Rate("amos_base", ("rtd", "adversarial"), "post", 347_000 * 1036.2e6),
  Rate("electra_base", ("rtd", "none"), "post", 465_000 * 665.9e6),
  Rate("taco_base", ("mlm", "taco", "none"), "post", 602_000 * 560.1e6),
  Rate("roberta_base:modern", ("mlm", "none"), "pre", 310_000 * 761.6e6),
)
_ON = "NVIDIA H200"


def _method(config: ConfigDict) -> tuple[str, ...]:
  return (*sorted(switched_on(config.objectives.to_dict())), config.generator.mixture)


def expected(config: ConfigDict, kind: str) -> tuple[float, str] | None:
  """Returns the nominal FLOP/s to expect of one device, and a phrase that says why; None without a peak.

  The rate is that of the same method and backbone, else the mean of its backbone. Other GPUs are expected to
  reach the same share of their peak. On a TPU and for DeBERTa, where nothing was run, half of the peak is
  assumed, and also where the config names a peak.
  """
  peak = config.train.peak_flops or chips.peak_flops(kind)
  if not peak:
    return None
  rows = [row for row in MEASURED if row.norm_placement == config.model.norm_placement]
  is_new = config.model.relative_position == "disentangled"
  if config.train.peak_flops or "NVIDIA" not in kind or is_new or not rows:
    return peak / 2, "half of the peak, not measured"
  rows = [row for row in rows if row.method == _method(config)] or rows
  rate = statistics.mean(row.flops for row in rows)
  what = f"measured for {rows[0].recipe}"
  if len(rows) > 1:
    what = f"the mean measured for {len(rows)} recipes"
  if kind == _ON:
    return rate, f"{rate / 1e12:.0f} TFLOP/s, {what} (docs/results/speed.md)"
  share = rate / (chips.peak_flops(_ON) or rate)
  return share * peak, f"{share:.0%} of the peak, {what} on an H200"


def hours(config: ConfigDict, flops_per_second: float) -> float:
  """Returns the hours of a whole run at a speed in nominal FLOP/s."""
  tokens = batch_sizes(config.train).rows_before(config.train.total_steps) * config.data.length
  return flops.training_flops_per_token(config.to_dict()) * tokens / flops_per_second / 3600
