"""Whole-word masks from the config to the masks of a run: its vocabulary, training and held-out rows."""

import dataclasses
from unittest import mock

import numpy as np
import pytest

from data import vocabulary
from data.errors import ConfigError
from pretrain.checkpoints.opened import open_run
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests.pretrain.small_run import metric_lines, run_training, small_config

FIELDS = {"corruption.whole_words": True, "train.total_steps": 2, "train.log_every": 1, "train.eval_every": 1}


def _cuts(masking, ids: np.ndarray, words: vocabulary.Vocabulary) -> int:
  """The number of words that are masked in part, by the text of the pieces."""
  selected, special = np.asarray(masking.selected), {*vars(words.special_ids).values()}
  cuts = 0
  for row, at in np.argwhere(np.ones_like(ids)):
    piece, before = words.piece(ids[row, at]), ids[row, at - 1]
    if at and not piece.startswith("▁") and not {ids[row, at], before} & special:
      cuts += selected[row, at] != selected[row, at - 1]
  return cuts


@pytest.mark.parametrize("recipe", ["mlm", "coco_lm", "segments"])
def test_a_run_masks_whole_words_of_training_and_held_out_rows(
  recipe, small_records, segment_records, tmp_path
):
  fields = FIELDS | ({"data.packing": "segments"} if recipe == "segments" else {})
  records = segment_records if recipe == "segments" else small_records
  config = small_config(recipe.replace("segments", "mlm"), records, fields)
  assert run_training(config, tmp_path) == 0
  opened = open_run(tmp_path, rows=8)
  words = opened.encoder.vocabulary
  ids = opened.heldout.rows(0, 8)
  masking = opened.run.eval_batch_of(ids, 0, 0.0).corrupted.masking
  assert np.asarray(masking.selected).sum() > 8
  assert _cuts(masking, ids, words) == _cuts(opened.run.batch_of(ids, 1).corrupted.masking, ids, words) == 0
  apart = dataclasses.replace(opened.run.recipe.masking, whole_words=False)
  by_tokens = dataclasses.replace(opened.run, recipe=dataclasses.replace(opened.run.recipe, masking=apart))
  assert _cuts(by_tokens.batch_of(ids, 1).corrupted.masking, ids, words) > 8
  rates = [line["train/mask_rate"] for line in metric_lines(tmp_path) if "train/mask_rate" in line]
  assert len(rates) == 2 and all(0.05 < rate < 0.3 for rate in rates)


def test_a_vocabulary_without_marks_is_refused_in_a_line_before_anything_is_compiled(small_records, tmp_path):
  config = small_config("mlm", small_records, FIELDS)
  with (
    mock.patch.object(vocabulary.Vocabulary, "word_starts", b""),
    mock.patch.object(vocabulary, "load_cached", vocabulary.load),
    pytest.raises(ConfigError, match=r"do not show where words begin .*'▁'.\n  --config\.\S*=False$"),
  ):
    run_training(config, tmp_path)
  records = prepared.open(reading_settings(small_config("mlm", small_records)))
  assert records.tokens_for(small_config("mlm", small_records).corruption) == records.tokens
