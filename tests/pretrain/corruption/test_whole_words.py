"""Whole-word masks from the config to the masks of a run: its vocabulary, training and held-out rows."""

import dataclasses
from unittest import mock

import numpy as np
import pytest

from data import vocabulary
from data.errors import ConfigError
from pretrain.checkpoints.opened import open_run
from tests.pretrain.small_run import metric_lines, run_training, small_config

FIELDS = {"corruption.whole_words": True, "train.total_steps": 2, "train.log_every": 1, "train.eval_every": 1}


def _cuts(masked, ids: np.ndarray, words: vocabulary.Vocabulary) -> int:
  """The number of words that are masked in part, by the text of the pieces."""
  selected, special = np.asarray(masked.corrupted.masking.selected), {*vars(words.special_ids).values()}
  cuts = 0
  for row, at in np.argwhere(np.ones_like(ids)):
    piece, before = words.piece(ids[row, at]), ids[row, at - 1]
    if at and not piece.startswith("▁") and not {ids[row, at], before} & special:
      cuts += selected[row, at] != selected[row, at - 1]
  return cuts


def test_a_run_masks_whole_words_of_training_and_held_out_rows(small_records, tmp_path):
  assert run_training(small_config("mlm", small_records, FIELDS), tmp_path) == 0
  opened = open_run(tmp_path, rows=8)
  run, words, ids = opened.run, opened.encoder.vocabulary, opened.heldout.rows(0, 8)
  held_out = run.eval_batch_of(ids, 0, 0.0)
  assert np.asarray(held_out.corrupted.masking.selected).sum() > 8
  assert _cuts(held_out, ids, words) == _cuts(run.batch_of(ids, 1), ids, words) == 0
  apart = dataclasses.replace(run.recipe.masking, whole_words=False)
  by_tokens = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, masking=apart))
  assert _cuts(by_tokens.batch_of(ids, 1), ids, words) > 8
  rates = [line["train/mask_rate"] for line in metric_lines(tmp_path) if "train/mask_rate" in line]
  assert len(rates) == 2 and all(0.05 < rate < 0.3 for rate in rates)


def test_a_vocabulary_without_marks_is_refused_before_anything_is_compiled(small_records, tmp_path):
  with (
    mock.patch.object(vocabulary.Vocabulary, "word_starts", b""),
    mock.patch.object(vocabulary, "load_cached", vocabulary.load),
    pytest.raises(ConfigError, match=r"--config\.corruption\.whole_words=False"),
  ):
    run_training(small_config("mlm", small_records, FIELDS), tmp_path)
