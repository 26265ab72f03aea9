"""The card's rows about text and beginning: only what was really read and taken."""

import pytest

from configs import base
from data.corpora import CORPORA
from pretrain.export.card import history

RECORDS = {
  "source": "/home/me/corpus/*.jsonl,b.txt",
  "packing": "none",
  "length": 64,
  "documents": 1_234,
  "tokens": 56_789,
  "records": 900,
}


def _rows(fields: dict | None = None, **meta) -> dict[str, str]:
  """{name: value} of the table about pretraining."""
  config = base.get_config()
  config.update_from_flattened_dict(fields or {})
  made = {"config": config.to_dict(), "step": 7, "packages": {"jax": "0"}, **meta}
  lines = [line.strip("| ").split(" | ") for line in history.training(made, 0.0) if " | " in line]
  return {line[0]: line[1] for line in lines if len(line) == 2}


@pytest.mark.parametrize("name", CORPORA)
def test_what_stands_in_for_the_papers_text_is_named_with_every_part(name):
  text = _rows(records=RECORDS | {"source": f"seqio:{name}"})["text"]
  read, _, papers = text.partition(", in place of the papers' ")
  assert all(f"`{part.source.tfds_name}`" in read for part in CORPORA[name].tfds)
  assert "BookCorpus" in papers and "BookCorpus" not in read
  assert ("`c4/en:3.1.0` (8.4% of it)" in read) == (name == "web_160gb")


def test_own_text_is_described_by_its_records_and_not_by_the_recipe():
  fields = {"data.source": "seqio:wikipedia_books", "data.directory": "/home/me/mine", "data.length": 128}
  rows = _rows(fields | {"data.fraction": 0.25}, records=RECORDS)
  assert rows["text"] == (
    "own files `*.jsonl`, `b.txt`; 1,234 documents, 56,789 training tokens (only the "
    "first 25% of the records were used)"
  )
  assert rows["batch"] == "2,048 x 128 tokens, packing `none` into at most 64 tokens"


def test_numbers_of_the_run_are_those_of_its_config():
  fields = {"train.batch_size": 10, "data.length": 100, "model.dropout": 0.1, "model.attention_dropout": 0.2}
  rows = _rows(fields | {"optimizer.adam_b1": 0.8, "optimizer.adam_b2": 0.9})
  assert rows["updates"] == "7" and rows["tokens seen"] == "7,000 (padding counted)"
  assert rows["batch"].startswith("10 x 100 tokens")
  assert rows["dropout"] == "0.1, attention 0.2"
  assert rows["corruption"] == "mask, mask rate 0.15"
  assert rows["Adam"].startswith("b1 0.8, b2 0.9, ")


def test_what_changes_during_a_run_is_told():
  fields = {"train.batch_size": 10, "train.microbatches": 5, "data.length": 100}
  fields |= {"train.batch_size_start": 4, "train.batch_warmup_steps": 3}  # 4, 6, 8, 10, 10, 10, 10 rows
  rows = _rows(fields | {"corruption.mask_rates": [[0.0, 0.3], [0.8, 0.15]]})
  assert rows["tokens seen"] == "5,800 (padding counted)"
  assert rows["batch"].startswith("4 to 10 (after 3 updates) x 100 tokens")
  assert rows["corruption"] == "mask, mask rate 0.3, 0.15 from 80% on"
  words = _rows(fields | {"corruption.whole_words": True})
  assert words["corruption"] == "mask, mask rate 0.15, whole words"


def test_a_run_from_scratch_began_with_random_values():
  assert _rows(started_from={})["initialised from"] == "random values"


def test_every_part_taken_from_another_checkpoint_is_named_with_its_own_beginning():
  imported = {"recipe": "imported", "step": 0, "source": {"path": "/home/me/cocolm-base/"}}
  started_from = {
    "train.init_from": {"recipe": "amos_tiny", "step": 1_500, "started_from": {"train.init_from": imported}},
    "generator.init_from": imported,
  }
  assert _rows(started_from=started_from)["initialised from"] == (
    "encoder, and heads and generator if they match: recipe `amos_tiny`, step 1,500, which began with "
    "encoder, and heads and generator if they match: `cocolm-base`, imported; generator: `cocolm-base`, "
    "imported"
  )
