"""The rows of the model card that say what a run read and what it began with."""

import pathlib
from collections.abc import Mapping
from typing import Any

from data.seqio_tasks import CORPORA
from pretrain.provenance import starts

# What the papers name; a run reads what `data.seqio_tasks.CORPORA` says, and the card must not claim more.
_IN_PLACE_OF = {
  "wikipedia_books": "Wikipedia and BookCorpus",
  "web_160gb": "Wikipedia, BookCorpus, CC-News, OpenWebText and Stories",
}
_PARTS = {
  "train.init_from": "encoder, and heads and generator where they fit",
  "generator.init_from": "generator",
  "model.freeze_embeddings_from": "token table, which was not trained",
}


def text(meta: Mapping[str, Any]) -> str:
  """The text of a checkpoint: of its records where it says what they were made of, else of its config."""
  data, records = meta["config"]["data"], meta.get("records")
  if not records:
    if data["directory"]:
      return f"prepared records of the user's own; what they were made of was not recorded (`{_last(data)}`)"
    return f"{_named(data['source'])} (as its config names it; what was read was not recorded)"
  used = "" if data["fraction"] == 1 else f", of whose records the first {data['fraction']:.0%} were used"
  size = f"{records['documents']:,} documents, {records['tokens']:,} tokens to train on"
  return f"{_named(records['source'])}; {size}{used}"


def _last(data: Mapping[str, Any]) -> str:
  return pathlib.PurePath(data["directory"]).name


def packing(meta: Mapping[str, Any]) -> str:
  """How the records were cut, and their length in tokens where it is not that of the batches."""
  data, records = meta["config"]["data"], meta.get("records")
  if not records:
    return f"packing `{data['packing']}`"
  shorter = f" into at most {records['length']} tokens" if records["length"] != data["length"] else ""
  return f"packing `{records['packing']}`{shorter}"


def _named(source: str) -> str:
  """Readable words for `--source` of `data.prepare`; where own files lay stays the user's own business."""
  kind, _, name = source.partition(":")
  if source == "installed_docs":
    return "the documentation of Python packages installed on the training machine"
  if kind == "seqio" and name in CORPORA:
    parts = [
      f"`{corpus.tfds_name}`" + ("" if corpus.keep == 1 else f" ({corpus.keep:.0%} of it)")
      for corpus in CORPORA[name]
    ]
    return f"of TFDS {', '.join(parts)}, in place of the papers' {_IN_PLACE_OF[name]}"
  if kind in ("tfds", "seqio") and name:
    return f"`{source}`"
  return "own files " + ", ".join(f"`{pathlib.PurePath(path).name}`" for path in source.split(",") if path)


def started_from(meta: Mapping[str, Any]) -> str:
  """What a run took from other checkpoints, as its meta says, or as far as its config does."""
  known = meta.get("started_from", {})
  rows = []
  for field, path in starts(meta["config"]).items():
    where = _checkpoint(known[field]) if field in known else f"`{_place(path)}` (as its config names it)"
    rows.append(f"{_PARTS[field]}: {where}")
  return "; ".join(rows) or "random values"


def has_imported_start(meta: Mapping[str, Any]) -> bool:
  """Whether some part of the run began with weights of others, at whatever remove."""
  starts_of = meta.get("started_from", {}).values()
  return any("source" in start or has_imported_start(start) for start in starts_of)


def source_name(source: Mapping[str, Any]) -> str:
  """The file or folder an import was made of, without the place where it lay."""
  return f"`{pathlib.PurePath(source['path']).name}`" if source.get("path") else "another checkpoint"


def _checkpoint(start: Mapping[str, Any]) -> str:
  if "source" in start:
    return f"{source_name(start['source'])}, imported"
  before = "; ".join(
    f"{_PARTS[field]}: {_checkpoint(of)}" for field, of in start.get("started_from", {}).items()
  )
  began = f", which began with {before}" if before else ""
  return f"recipe `{start['recipe']}`, step {start['step']:,}{began}"


def _place(path: str) -> str:
  """'run, step 5' of 'runs/run/checkpoints/5'."""
  parts = [*pathlib.PurePath(path).parts]
  if parts[-1].isdecimal() and parts[-2:-1] == ["checkpoints"]:
    return f"{parts[-3] if len(parts) > 2 else 'checkpoints'}, step {parts[-1]}"
  return parts[-2] if parts[-1] == "checkpoints" and len(parts) > 1 else parts[-1]
