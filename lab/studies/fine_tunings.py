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


def _tagging(sentences: int) -> FineTuning:
  """Returns fine-tuning on part-of-speech tags with `sentences` sentences, tuned on the development set."""
  fields = {
    "own.task": "tagging",
    "data.train_file": "{train}",
    "data.dev_file": "{dev}",
    "data.text": "2",
    "data.label": "4",
    "data.labels": _UPOS,  # all of them: 50 sentences lack some
    "data.train_rows": sentences,
    "search.batch_sizes": (16,),
    "search.learning_rates": (3e-4, 1e-3, 3e-3),
    "search.evaluations_per_epoch": 1,
  }
  return FineTuning("configs/finetune_own.py", fields, "{test}")


def _entities(sentences: int) -> FineTuning:
  """Returns fine-tuning on the entities of `sentences` sentences, with nothing to choose."""
  fields = {
    "own.task": "tagging",
    "data.train_file": "{entities_dev}",  # UNER's training file is not published
    "data.text": "2",
    "data.label": "3",
    "data.labels": "B-LOC,B-ORG,B-PER,I-LOC,I-ORG,I-PER,O",
    "data.train_rows": sentences,
    "search.batch_sizes": (16,),
    "search.learning_rates": (1e-3,),
    "search.evaluations_per_epoch": 1,
  }
  return FineTuning("configs/finetune_own.py", fields, "{entities_test}")


def _embedding(train: str, scored_on: str) -> FineTuning:
  """Returns one embedding stage for every encoder, with nothing to choose."""
  fields = {"data.train_file": train, "search.learning_rates": (1e-3,), "search.evaluations_per_epoch": 1}
  return FineTuning("configs/finetune_embedding.py", fields, scored_on)


def _glue(task: str) -> FineTuning:
  """Returns fine-tuning on a GLUE task: one learning rate, batch size and run, scored on its dev set."""
  fields = {"tasks": task, "data.directory": f"{{{task}}}", "search.cells": "one", "search.num_seeds": 1}
  return FineTuning("configs/finetune_glue.py", fields)


TAGGING = {f"tagging_{sentences}": _tagging(sentences) for sentences in (50, 200, 1_000)}
_GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "rte", "mrpc", "stsb")
FINE_TUNINGS = {
  **TAGGING,
  "entities_200": _entities(200),
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
