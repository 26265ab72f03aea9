"""Fine-tunings of a study's encoders, by name, and where the annotated data have their files."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from data import annotated
from data.glue import tsv
from data.glue.tasks import known_task

_UPOS = "ADJ,ADP,ADV,AUX,CCONJ,DET,INTJ,NOUN,NUM,PART,PRON,PROPN,PUNCT,SCONJ,SYM,VERB,X"
_SPLITS = ("train", "dev", "test")  # of the treebank


@dataclasses.dataclass(frozen=True)
class FineTuning:
  """Settings for fine-tuning a cell's last checkpoint with a search of `finetune.main`.

  In values, a name in braces is replaced by a path, see `files_of`.
  """

  config: str  # value of `finetune.main --config`
  fields: Mapping[str, Any]  # changed fields, by dotted name
  # Data for `finetune.evaluate --data` with the best model; '': use the search's own scores.
  scored_on: str = ""


def _tagging(
  sentences: int, files: Mapping[str, str], label: str, labels: str, rates: tuple[float, ...], scored_on: str
) -> FineTuning:
  """Returns fine-tuning on the tags in column `label` of `sentences` sentences, in batches of 16."""
  fields = {"own.task": "tagging", **files, "data.text": "2", "data.label": label, "data.labels": labels}
  fields |= {"data.train_rows": sentences, "search.batch_sizes": (16,), "search.learning_rates": rates}
  return FineTuning("configs/finetune_own.py", fields | {"search.evaluations_per_epoch": 1}, scored_on)


def _embedding(train: str, scored_on: str) -> FineTuning:
  """Returns one embedding stage for every encoder, with nothing to choose."""
  fields = {"data.train_file": train, "search.learning_rates": (1e-3,), "search.evaluations_per_epoch": 1}
  return FineTuning("configs/finetune_embedding.py", fields, scored_on)


def _glue(task: str) -> FineTuning:
  """Returns fine-tuning on a GLUE task: one learning rate, batch size and run, scored on its dev set."""
  fields = {"tasks": task, "data.directory": f"{{{task}}}", "search.cells": "one", "search.num_seeds": 1}
  return FineTuning("configs/finetune_glue.py", fields)


# Part of speech, tuned on the development set, with all labels: 50 sentences lack some.
_TREEBANK = {"data.train_file": "{train}", "data.dev_file": "{dev}"}
_RATES = (3e-4, 1e-3, 3e-3)
TAGGING = {
  f"tagging_{number}": _tagging(number, _TREEBANK, "4", _UPOS, _RATES, "{test}")
  for number in (50, 200, 1_000)
}
# Entities, with nothing to choose; UNER's training file is not published.
_UNER = {"data.train_file": "{entities_dev}"}
_ENTITIES = _tagging(200, _UNER, "3", "B-LOC,B-ORG,B-PER,I-LOC,I-ORG,I-PER,O", (1e-3,), "{entities_test}")
_GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "rte", "mrpc", "stsb")
FINE_TUNINGS = {
  **TAGGING,
  "entities_200": _ENTITIES,
  "names": _embedding("{pairs}", "{beir}"),
  "sts": _embedding("{stsb_train}", "{stsb_dev}"),
  **{task: _glue(task) for task in _GLUE},
}


def files_of(name: str, data: pathlib.Path) -> tuple[dict[str, pathlib.Path | None], str]:
  """Finds a fine-tuning's data: {placeholder: path, None if missing}, and text that names the files."""
  match FINE_TUNINGS[name].scored_on:
    case "{beir}":  # docs/tutorials/embeddings.py writes both
      paths = {"pairs": data / "names" / "pairs.jsonl", "beir": data / "names" / "beir"}
      needs = "names/ with pairs.jsonl and beir/, which docs/tutorials/embeddings.py writes"
      return {place: path if path.exists() else None for place, path in paths.items()}, needs
    case "{test}":
      needs = f"UD_English-EWT/ with {', '.join(f'*-ud-{split}*.conllu' for split in _SPLITS)}"
      return {split: annotated.treebank(data, split) for split in _SPLITS}, needs
    case "{entities_test}":
      needs = "UNER_English-EWT/ with *-ud-dev*.iob2 and *-ud-test*.iob2"
      return {f"entities_{split}": annotated.entities(data, split) for split in ("dev", "test")}, needs
    case "{stsb_dev}":
      task, splits = known_task("stsb"), ("train", "dev")
      folder = annotated.glue_folder(data, "stsb", splits)
      paths = {f"stsb_{split}": tsv.find(folder, task, split) if folder else None for split in splits}
      return paths, "glue/STS-B/ with train.tsv and dev.tsv"
    case _:
      splits = [split for split in known_task(name).sizes if split in ("train", "dev", "dev_matched")]
      needs = f"glue/{known_task(name).folders[0]}/ with {', '.join(f'{split}.tsv' for split in splits)}"
      return {name: annotated.glue_folder(data, name, splits)}, needs
