"""Opening a run to look at it."""

import types

import pytest

from pretrain.checkpoints import opened
from pretrain.reading import feed, prepared
from pretrain.settings.run import reading_settings
from tests.pretrain.small_run import small_config

FED = {"data.feed": "seqio", "data.source": "seqio:one"}


def test_a_run_is_looked_at_on_the_held_out_blocks_that_it_was_evaluated_on(monkeypatch):
  saved = types.SimpleNamespace(
    meta={"config": small_config("mlm", "", FED).to_dict()}, open_encoder=lambda: None
  )
  monkeypatch.setattr(opened, "open_model", lambda *_: saved)
  fed = types.SimpleNamespace(close=lambda: None, heldout="blocks")
  sizes = []
  monkeypatch.setattr(feed, "open", lambda settings: sizes.append(settings.batch_size) or fed)
  with pytest.raises(AttributeError):  # the saved model is no model
    opened.open_run("run", rows=3)
  assert sizes == [8]
  assert prepared.open_heldout(reading_settings(small_config("mlm", "", FED))) == ("blocks", "seqio:one")
