"""Where a run's text and its first values came from: what its checkpoints say of it for the model card."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from data import manifest
from pretrain.checkpoint import read_meta, step_path

# Of another checkpoint's meta: what says who made it.
_KEPT = ("step", "source", "started_from")


def describe(config: ConfigDict, directory: str, latest: Mapping[str, Any] | None = None) -> dict[str, Any]:
  """What a checkpoint's meta says besides the config, which names what was asked for.

  Args:
    config: what the run is started with.
    directory: where its prepared records are.
    latest: meta of the checkpoint that is continued; None: the run starts.

  Returns:
    JSON values: 'records' ('source', 'packing' and 'length' in tokens as they were prepared; 'documents'
    of training and held-out text together, 'tokens' and 'records' to train on), and 'started_from': {field
    of the config: 'recipe', 'step' and, where that checkpoint has them, its 'source' and 'started_from'}.
    The latter is missing if the checkpoint that is continued does not say it.

  Raises:
    DataError: no manifest, or no checkpoint where the config names one.
  """
  content = manifest.read(directory)
  train = content.splits["train"]
  records = {
    "source": content.settings.get("source", ""),
    "packing": content.packing,
    "length": content.length,
    "documents": content.counts.get("documents", 0),
    "tokens": train.tokens,
    "records": train.records,
  }
  if latest is None:
    return {
      "records": records,
      "started_from": {name: _of(path) for name, path in starts(config.to_dict()).items()},
    }
  # The checkpoints named in the config may be gone by now.
  return {"records": records} | {name: latest[name] for name in ("started_from",) if name in latest}


def starts(config: Mapping[str, Any]) -> dict[str, str]:
  """{field: checkpoint} of the checkpoints that a config (as a dict) takes values from, in this order."""
  named = {"train.init_from": config["train"]["init_from"]}
  if config["corruption"]["kind"] == "generator":
    named["generator.init_from"] = config["generator"]["init_from"]
  if config["model"]["freeze_embeddings"] == "checkpoint":
    named["model.freeze_embeddings_from"] = config["model"]["freeze_embeddings_from"]
  return {name: path for name, path in named.items() if path}


def _of(path: str) -> dict[str, Any]:
  meta = read_meta(step_path(path))
  recipe = meta.get("config", {}).get("recipe", "")
  return {"recipe": recipe} | {name: meta[name] for name in _KEPT if name in meta}
