"""What a config must satisfy before anything is opened, built or compiled. Imports no jax.

All problems are found in one go. A field that is wrong by itself is not held against others: rules about
several fields are silent where one of them is already named.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from data.errors import ConfigError
from pretrain.command import fields
from pretrain.command import rules as combinations


class Interval(NamedTuple):
  """Numbers a field may have."""

  low: float
  high: float = math.inf
  low_open: bool = False
  high_open: bool = False

  def holds(self, value: float) -> bool:
    """Whether the value lies inside."""
    above = value > self.low if self.low_open else value >= self.low
    return above and (value < self.high if self.high_open else value <= self.high)

  def __str__(self) -> str:
    if self.high == math.inf:
      return f"a number {'above' if self.low_open else 'of at least'} {self.low:g}"
    left, right = "([", ")]"
    return f"a number in {left[not self.low_open]}{self.low:g}, {self.high:g}{right[not self.high_open]}"


POSITIVE = Interval(0, low_open=True)
NOT_NEGATIVE = Interval(0)
COUNT = Interval(1)
FRACTION_OFF = Interval(0, 1, high_open=True)  # 0: off; 1 would leave nothing

INTERVALS = {
  "seed": Interval(0, 2**32 - 1),
  "model.vocab_size": Interval(6),  # five special tokens and one to learn
  "model.hidden_size": COUNT,
  "model.num_layers": COUNT,
  "model.num_heads": COUNT,
  "model.mlp_size": COUNT,
  "model.max_length": Interval(3),
  "model.num_segments": NOT_NEGATIVE,
  "model.relative_buckets": Interval(4),
  "model.relative_max_distance": COUNT,
  "model.layer_norm_eps": POSITIVE,
  "model.dropout": FRACTION_OFF,
  "model.attention_dropout": FRACTION_OFF,
  "model.init_stddev": POSITIVE,
  "model.scan_unroll": COUNT,
  "model.vocab_chunk_rows": COUNT,
  "corruption.mask_rate": Interval(0, 1, low_open=True, high_open=True),
  "corruption.mask_token_rate": Interval(0, 1),
  "corruption.random_token_rate": Interval(0, 1),
  "generator.num_layers": COUNT,
  "generator.hidden_size": NOT_NEGATIVE,
  "generator.mlp_size": NOT_NEGATIVE,
  "generator.num_heads": NOT_NEGATIVE,
  "generator.temperature": POSITIVE,
  "generator.gumbel_temperature": POSITIVE,
  "generator.loss_weight": NOT_NEGATIVE,
  "objectives.mlm.weight": NOT_NEGATIVE,
  "objectives.rtd.weight": NOT_NEGATIVE,
  "objectives.clm.weight": NOT_NEGATIVE,
  "objectives.all_token.weight": NOT_NEGATIVE,
  "objectives.scl.weight": NOT_NEGATIVE,
  "objectives.scl.crop_fraction": POSITIVE,
  "objectives.scl.temperature": POSITIVE,
  "objectives.scl.projection_size": NOT_NEGATIVE,
  "objectives.scl.group_size": NOT_NEGATIVE,
  "objectives.taco.weight": NOT_NEGATIVE,
  "objectives.taco.window": Interval(2),  # 1 has no neighbours
  "objectives.taco.num_negatives": COUNT,
  "objectives.taco.temperature": POSITIVE,
  "objectives.taco.group_size": NOT_NEGATIVE,
  "optimizer.learning_rate": POSITIVE,
  "optimizer.warmup_steps": NOT_NEGATIVE,
  "optimizer.power": POSITIVE,
  "optimizer.end_learning_rate": NOT_NEGATIVE,
  "optimizer.adam_b1": FRACTION_OFF,
  "optimizer.adam_b2": FRACTION_OFF,
  "optimizer.adam_eps": POSITIVE,
  "optimizer.weight_decay": NOT_NEGATIVE,
  "optimizer.clip_norm": NOT_NEGATIVE,
  "data.length": Interval(8),  # what data.prepare makes
  "data.fraction": Interval(0, 1, low_open=True),
  "data.workers": NOT_NEGATIVE,
  "train.batch_size": COUNT,
  "train.microbatches": COUNT,
  "train.total_steps": COUNT,
  "train.log_every": COUNT,
  "train.eval_every": COUNT,
  "train.eval_batches": NOT_NEGATIVE,
  "train.checkpoint_every": COUNT,
  "train.checkpoints_to_keep": COUNT,
  "train.max_nonfinite_steps": COUNT,
  "train.peak_flops": NOT_NEGATIVE,
  "mesh.data": Interval(-1),
  "mesh.fsdp": Interval(-1),
  "mesh.tensor": Interval(-1),
}

CHOICES = {
  "model.relative_position": ("t5", "official", "none"),
  "model.dtype": ("float32", "bfloat16", "auto"),
  "model.freeze_embeddings": ("none", "random", "checkpoint"),
  "corruption.kind": ("mask", "random", "generator"),
  "corruption.mask_rule": ("count", "bernoulli", "electra_google"),
  "corruption.mask_special": ("all", "sep_only", "none"),
  "corruption.random_token_from": ("non_special", "all"),
  "generator.share_embeddings": ("tokens", "all", "none"),
  "generator.projection": ("table", "embeddings"),
  "generator.sampling_dropout": ("eval", "train", "zero"),
  "generator.mixture": ("none", "adversarial", "uniform", "random_layer", "schedule", "fixed"),
  "objectives.mlm.positions": ("masked", "all"),
  "objectives.mlm.all_reduction": ("one_mean", "separate_means"),
  "objectives.rtd.head": ("linear", "dense"),
  "objectives.clm.form": ("mixture", "weighted"),
  "objectives.scl.head": ("cls", "projection"),
  "objectives.taco.anchors": ("all", "masked", "unmasked"),
  "optimizer.schedule": ("linear", "electra_google", "constant"),
  "optimizer.adam_eps_placement": ("uncorrected", "corrected"),
  "optimizer.decay": ("all", "no_bias_norm"),
  "data.vocabulary_kind": ("sentencepiece", "wordpiece"),
  "data.packing": ("complete", "complete_doc", "none", "eos", "concat"),
}


@dataclasses.dataclass(frozen=True)
class Rules:
  """What the configs of one program must satisfy.

  Attributes:
    schema: the fields there are.
    intervals: {field: numbers it may have}.
    choices: {field: texts it may have}.
    together: (all fields, num_devices=, num_hosts=) to lines about several fields.
  """

  schema: fields.Schema
  intervals: Mapping[str, Interval]
  choices: Mapping[str, Sequence[str]]
  together: Callable[..., list[str]]


PRETRAINING = Rules(fields.PRETRAINING, INTERVALS, CHOICES, combinations.problems)


def problems(
  config: ConfigDict,
  *,
  rules: Rules = PRETRAINING,
  num_devices: int | None = None,
  num_hosts: int = 1,
) -> list[str]:
  """Everything that is wrong with a config, one line each; [] for a good one.

  Args:
    config: as a config file returns it, possibly with unknown or missing fields and wrong types.
    rules: of the program it is for.
    num_devices: of all hosts; None: not known yet, and rules about devices are left out.
    num_hosts: processes that train together.

  Returns:
    Lines that name the field, what was found, what was expected or what to do.
  """
  given, known = fields.flatten(config), fields.known_fields(rules.schema)
  found = [fields.unknown_field(name, rules.schema) for name in given if name not in known]
  found += fields.missing_fields(config, rules.schema)
  bad = {name for name in known if name not in given}
  for name in known:
    line = None if name in bad else value_problem(name, given[name], rules)
    if line is not None:
      found.append(line)
      bad.add(name)
  sound = dict(known) | {name: value for name, value in given.items() if name in known and name not in bad}
  together = rules.together(sound, num_devices=num_devices, num_hosts=num_hosts)
  return found + [line for line in together if not any(name in line for name in bad)]


def check(config: ConfigDict, *, num_devices: int | None = None, num_hosts: int = 1) -> None:
  """Refuses a config with problems.

  Args:
    config, num_devices, num_hosts: as for `problems`.

  Raises:
    ConfigError: with all problems.
  """
  found = problems(config, num_devices=num_devices, num_hosts=num_hosts)
  if found:
    raise ConfigError(listing(found))


def listing(lines: list[str]) -> str:
  """One problem as it is, several as a numbered list."""
  if len(lines) == 1:
    return lines[0]
  return "\n".join(
    [f"{len(lines)} problems", *(f"  {number}. {line}" for number, line in enumerate(lines, 1))]
  )


def value_problem(name: str, value: Any, rules: Rules = PRETRAINING) -> str | None:
  """The line that refuses the value of a known field by itself, or None."""
  line = fields.type_problem(name, value, rules.schema)
  if line is not None:
    return line
  choices, interval = rules.choices.get(name), rules.intervals.get(name)
  if choices is not None and value not in choices:
    return f"{name}={value!r}: expected one of {', '.join(choices)}{fields.nearest(value, choices)}"
  if interval is not None and not interval.holds(value):
    return f"{name}={value!r}: expected {interval}"
  return None
