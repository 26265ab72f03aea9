"""Vectors of words and scores of sentences equal what the encoder gives, computed one sentence at a time."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from lab.analysis.words import FrozenEncoder
from pretrain.checkpoints.saved_model import open_model
from pretrain.models import encoder as encoder_model
from pretrain.models import heads as head_models
from tests import byte_level
from tests.pretrain.one_program import OneProgramEach, one_program

heads, encode = OneProgramEach(head_models), one_program(encoder_model.encode)
SENTENCES = (("ba", "dogo", "ke"), ("lumi",), tuple("ba fi zo " * 30) + ("ba",))


@pytest.fixture(scope="module")
def frozen(finished) -> FrozenEncoder:
  saved = open_model(finished)
  opened = saved.open_encoder("", flag="--vocabulary", dtype="float32")
  width = opened.config.hidden_size
  rtd = heads.init_rtd_head(jax.random.key(3), opened.config, dense=False)
  assert rtd["kernel"].shape == (width, 1)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    yield FrozenEncoder(opened, {"mlm": saved.params["heads"]["mlm"], "rtd": rtd}, batch_size=4)


def _states(frozen: FrozenEncoder, ids: np.ndarray) -> jax.Array:
  config, pad_id = frozen.encoder.config, frozen.encoder.vocabulary.special_ids.pad
  row = jnp.asarray(ids)[None]
  return encode(frozen.encoder.params, config, row, row != pad_id, pad_id=pad_id)[1].last[0]


def test_a_word_is_the_mean_of_its_pieces_at_every_depth(frozen):
  vectors = frozen.words(SENTENCES)
  table = np.asarray(frozen.encoder.params["embeddings"]["token"]["embedding"])
  for given, found, sentence in zip(frozen.inputs(SENTENCES), vectors, SENTENCES):
    assert found.shape == (len(sentence), 3, frozen.encoder.config.hidden_size)
    last = np.asarray(_states(frozen, given["ids"]))
    for word in range(len(sentence)):
      own = given["words"] == word + 1
      expected = (
        np.zeros((2, found.shape[-1]))
        if not own.any()
        else [table[given["ids"][own]].mean(0), last[own].mean(0)]
      )
      np.testing.assert_allclose(found[word, [0, 2]], expected, rtol=1e-4, atol=1e-5)
  cut = vectors[2]
  assert np.any(cut[0]) and not np.any(cut[-1])  # beyond the last position nothing is known


def test_a_likelihood_masks_every_token_in_turn(frozen):
  sentences = SENTENCES[:2]
  found = frozen.likelihoods(sentences)
  head, encoder = frozen.heads["mlm"], frozen.encoder
  for given, total in zip(frozen.inputs(sentences), found):
    expected = 0.0
    for at in range(1, len(given["ids"]) - 1):
      ids = given["ids"].copy()
      ids[at] = encoder.vocabulary.special_ids.mask
      x = heads.apply_transform(head, encoder.config, _states(frozen, ids)[None])[0, at]
      logits = np.asarray(encoder.params["embeddings"]["token"]["embedding"]) @ np.asarray(x) + head["bias"]
      expected += float(scipy.special.log_softmax(logits)[given["ids"][at]])
    assert total == pytest.approx(expected, rel=1e-4)


def test_originality_adds_up_the_tokens_of_words(frozen):
  (given,) = frozen.inputs(SENTENCES[:1])
  logits = heads.apply_rtd_head(
    frozen.heads["rtd"], frozen.encoder.config, _states(frozen, given["ids"])[None]
  )[0]
  expected = float(np.sum(scipy.special.log_expit(np.asarray(logits))[1:-1]))
  assert frozen.originality(SENTENCES[:1])[0] == pytest.approx(expected, rel=1e-4)
  assert FrozenEncoder(frozen.encoder, {}, batch_size=4).originality(SENTENCES) is None


def test_words_have_the_ids_of_running_text(tmp_path):
  words = byte_level.imported(tmp_path)
  encoder = types.SimpleNamespace(vocabulary=words, config=types.SimpleNamespace(max_length=64))
  frozen = FrozenEncoder(encoder, {}, batch_size=1)  # pyright: ignore[reportArgumentType] (no model runs)
  (given,) = frozen.inputs([("The", "people", "make", "time.")])
  assert given["ids"].tolist() == words.with_special_ids(words.encode("The people make time."))
