"""Describes a run before it starts: config, parameters, sharding, cost. Nothing is trained or written."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from data import files, manifest, vocabulary
from pretrain.checkpoints import resume, warm_start
from pretrain.corruption.masking import TokenIds
from pretrain.mesh import chips, trees
from pretrain.plan import rates
from pretrain.plan.compile_ahead import planned_run
from pretrain.plan.cost import (
  cost_lines,
  microbatches_of,
  most_rows,
  section,
  total_hours,
  work_lines,
)
from pretrain.reading import mixed
from pretrain.reading.prepare import records_directory, refuse_other_text
from pretrain.reading.prepared import refuse_other_masks, token_ids
from pretrain.run import Run, make_run
from pretrain.settings import PRETRAINING, mixture
from pretrain.settings.run import DataFields, ReadingSettings, reading_settings


def parameter_counts(params: Mapping[str, Any]) -> dict[str, int]:
  """Counts parameters as {'encoder', 'generator', 'heads', 'total'}; shared tables count as encoder."""
  counts = {
    part: sum(leaf.size for leaf in jax.tree.leaves(params.get(part, {})))
    for part in ("encoder", "generator", "heads")
  }
  return counts | {"total": sum(counts.values())}


def dry_run(config: ConfigDict, *, workdir: str) -> str:
  """Returns the resolved config, parameter counts, mesh, sharding and cost of a run, as text.

  ConfigError: the config has problems. DataError: a checkpoint to begin with is missing.
  """
  PRETRAINING.check(config, num_devices=jax.device_count())
  _ = warm_start.origins(config.to_dict()).paths  # looks for them
  settings = reading_settings(config)
  if mixture.is_fed(config.data):
    tokens, lines = _feed(settings.data, settings.vocab_size)
  elif mixture.seqio_name(config.data):
    tokens = TokenIds(0, 1, 2, 3, 4, config.model.vocab_size)
    lines = {"records": f"of the Tasks of {config.data.mixture}; the first start reads their names"}
  elif mixture.is_asked(config.data):
    found = mixed.find(settings, only=(manifest.NAME,))
    refuse_other_masks(settings.data, found.manifest.packing, records=found.directory)
    tokens, lines = token_ids(found.directory), _mixture_lines(found)
  else:
    tokens, lines = _records(settings)
  # Costs do not depend on where words begin.
  run = make_run(config, dataclasses.replace(tokens, word_starts=b"\1" * tokens.vocab_size))
  sections = [
    section("config", resume.flatten(config.to_dict())),
    section("workdir", {"workdir": workdir, **lines}),
    section("parameters", {k: f"{v:,}" for k, v in parameter_counts(run.abstract_state.params).items()}),
    section("mesh", {name: str(size) for name, size in run.mesh.shape.items()}),
    section("sharding", _sharding_lines(run)),
    _cost(run),
  ]
  return "\n\n".join(sections)


_MOST_HOURS = 1_000  # on CPUs: tiny recipes take less than one, small ones thousands
_MACHINES = ("h100", "h200", "h200:8", "v5e:2x4")  # their costs are shown instead


def _cost(run: Run) -> str:
  """Returns the cost of a run on the devices here; if a CPU would take too long, that on other machines."""
  device = jax.local_devices()[0]  # the memory of others cannot be read
  limit = (device.memory_stats() or {}).get("bytes_limit", 0)
  if device.platform == "cpu":
    if total_hours(run, kind=device.device_kind)[0] > _MOST_HOURS:
      title = f"on other machines, by formula, because the CPUs here would take over {_MOST_HOURS:,} hours"
      others = {f"--plan={name}": _on(chips.parse(name), run) for name in _MACHINES}
      last = "With one of these flags a dry run compiles the real step for that machine."
      return f"{section('cost', work_lines(run.config))}\n\n{section(title, others)}\n{last}"
    limit = chips.parse(f"cpu:{jax.local_device_count()}").chip.hbm_bytes
  return section("cost", cost_lines(run, kind=device.device_kind, limit=limit))


def _on(machine: chips.Machine, here: Run) -> str:
  """Returns the hours and the microbatches of a run on a machine that is not here, by formula."""
  config, chip, count = ConfigDict(here.config), machine.chip, machine.size
  run = planned_run(config, here.mesh.devices.flatten().tolist(), chip.platform)
  allowed = microbatches_of(config, count, count)
  rows, known = most_rows(run, allowed, chip.hbm_bytes), rates.expected(config, chip.kind)
  assert known  # all these chips have a peak
  speed, why = known
  fit = f"--config.train.microbatches={allowed[rows]}" if rows else "its weights must be sharded to fit"
  return f"{rates.hours(config, speed * count):,.0f} h at {why}; {fit}"


def _records(settings: ReadingSettings) -> tuple[TokenIds, dict[str, str]]:
  """Returns special ids from the records of a config, or placeholders, and a line about their location."""
  directory = records_directory(settings, only=(manifest.NAME,))
  prepared = os.path.exists(os.path.join(directory, manifest.NAME))
  if prepared:
    refuse_other_text(settings.data, directory)
    refuse_other_masks(settings.data, manifest.read(directory).packing, records=directory)
  tokens = token_ids(directory) if prepared else TokenIds(0, 1, 2, 3, 4, settings.vocab_size)
  directory = settings.data.directory or directory  # not the local copy of an address
  named = " if --config.data.source=FILES names their text" if settings.data.directory else ""
  missing = "" if prepared else f" (do not exist yet; the first start prepares them{named})"
  return tokens, {"records": f"{directory}{missing}"}


def _feed(data: DataFields, vocab_size: int) -> tuple[TokenIds, dict[str, str]]:
  """Returns special ids from `data.vocabulary`, or placeholders, and a line that names the source."""
  words = files.read_json(os.path.join(data.vocabulary, vocabulary.NAME)) if data.vocabulary else {}
  tokens = TokenIds(0, 1, 2, 3, 4, vocab_size)
  if words:
    tokens = TokenIds(**words["special_ids"], vocab_size=words["size"])
  return tokens, {"records": f"none: {data.source} is read during training"}


def _mixture_lines(sources: mixed.Found) -> dict[str, str]:
  return {
    f"records {source.name}": ", ".join(
      f"{float(rate):.4%} from step {step:,}" for step, rate in zip(sources.steps, source.rates)
    )
    + f" ({source.written})"
    for source in sources.sources
  }


def _sharding_lines(run: Run) -> dict[str, str]:
  leaves = trees.by_path(run.abstract_state.params)
  return {path: f"{list(leaf.shape)} {leaf.sharding.spec}" for path, leaf in leaves.items()}
