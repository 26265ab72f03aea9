"""Vectors of words and scores of sentences equal what encoder and generator give, one sentence at a time."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from data import vocabulary
from lab.analysis import edges
from lab.analysis.frozen_encoder import FrozenEncoder
from lab.analysis.probes import Annotated, Target
from lab.analysis.request import Request
from pretrain.build import build
from pretrain.checkpoints.saved_model import open_generator, open_model, save_params
from pretrain.models import encoder as encoder_model
from pretrain.models import heads as head_models
from pretrain.reading import prepared
from tests.pretrain.one_program import OneProgramEach, one_program
from tests.pretrain.small_run import small_config

heads, encode = OneProgramEach(head_models), one_program(encoder_model.encode)
SENTENCES = (("ba", "dogo", "ke"), ("lumi",), tuple("ba fi zo " * 30) + ("ba",))


@pytest.fixture(scope="module", autouse=True)
def on_one_device():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    yield


@pytest.fixture(scope="module")
def frozen(finished) -> FrozenEncoder:
  saved = open_model(finished)
  opened = saved.open_encoder("", flag="--vocabulary", dtype="float32")
  rtd = heads.init_rtd_head(jax.random.key(3), opened.config, dense=False)
  return FrozenEncoder(opened, {"mlm": saved.params["heads"]["mlm"], "rtd": rtd}, batch_size=4)


def _states(frozen: FrozenEncoder, ids: np.ndarray) -> jax.Array:
  config, pad_id = frozen.encoder.config, frozen.encoder.vocabulary.special_ids.pad
  row = jnp.asarray(ids)[None]
  return encode(frozen.encoder.params, config, row, row != pad_id, pad_id=pad_id)[1].last[0]


def test_a_word_is_the_mean_of_its_pieces_at_every_depth(frozen):
  vectors = frozen.words(SENTENCES)
  table = np.asarray(frozen.encoder.params["embeddings"]["token"]["embedding"])
  for given, found, by_layer, sentence in zip(
    frozen.inputs(SENTENCES), vectors, frozen.layers(SENTENCES), SENTENCES
  ):
    width, layers = frozen.encoder.config.hidden_size, frozen.encoder.config.num_layers
    assert found.shape == (len(sentence), 3, width) and by_layer.shape == (len(sentence), layers + 1, width)
    last = np.asarray(_states(frozen, given["ids"]))
    for word in range(len(sentence)):
      own = given["words"] == word + 1
      expected = [table[given["ids"][own]].mean(0), last[own].mean(0)] if own.any() else np.zeros((2, width))
      np.testing.assert_allclose(found[word, [0, 2]], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(by_layer[:, -1], found[:, -1])
  assert np.any(vectors[2][0]) and not np.any(vectors[2][-1])  # beyond the last position nothing is known


def test_a_likelihood_masks_every_token_in_turn_and_originality_adds_up_the_tokens_of_words(frozen):
  sentences = SENTENCES[:2]
  found, encoder = frozen.likelihoods(sentences), frozen.encoder
  head = frozen.heads["mlm"]
  for given, total in zip(frozen.inputs(sentences), found):
    expected = 0.0
    for at in range(1, len(given["ids"]) - 1):
      ids = given["ids"].copy()
      ids[at] = encoder.vocabulary.special_ids.mask
      x = heads.apply_transform(head, encoder.config, _states(frozen, ids)[None])[0, at]
      logits = np.asarray(encoder.params["embeddings"]["token"]["embedding"]) @ np.asarray(x) + head["bias"]
      expected += float(scipy.special.log_softmax(logits)[given["ids"][at]])
    assert total == pytest.approx(expected, rel=1e-4)
  (given,) = frozen.inputs(SENTENCES[:1])
  logits = heads.apply_rtd_head(frozen.heads["rtd"], encoder.config, _states(frozen, given["ids"])[None])[0]
  expected = float(np.sum(scipy.special.log_expit(np.asarray(logits))[1:-1]))
  assert frozen.originality(SENTENCES[:1])[0] == pytest.approx(expected, rel=1e-4)
  bare = FrozenEncoder(encoder, {}, batch_size=4)
  assert bare.originality(SENTENCES) is None and bare.likelihoods(SENTENCES) is None


def test_tasks_of_a_treebank(tmp_path):
  row = "1\tba\t_\tNOUN\t_\t_\t2\tnsubj:pass\t_\t_\n2\tke\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
  (tmp_path / "UD_English-EWT").mkdir()
  for split, number in (("train", 3), ("test", 1)):
    (tmp_path / "UD_English-EWT" / f"x-ud-{split}.conllu").write_text(row * number)
  tags, relations = edges.find(tmp_path, 2)
  assert (tags.name, relations.name) == ("part of speech", "dependency")
  assert [len(task.train) for task in (tags, relations)] == [2, 2] and len(tags.test) == 1
  assert tags.test == [Annotated(("ba", "ke"), (Target(((0, 1),), ("NOUN",)), Target(((1, 2),), ("VERB",))))]
  assert relations.test == [Annotated(("ba", "ke"), (Target(((0, 1), (1, 2)), ("nsubj",)),))]


LABELS = {"ba": "x", "ke": "y", "dogo": "x", "lumi": "z"}  # half of them 'x'


def _scores(directory: pathlib.Path, data: pathlib.Path) -> dict[tuple, float]:
  """F1 of a task whose sentences are single words: whatever tells words apart tells the labels too."""
  (data / edges.FOLDER).mkdir(parents=True, exist_ok=True)
  lines = [
    json.dumps({"text": word, "targets": [{"span1": [0, 1], "label": label}]})
    for word, label in LABELS.items()
  ]
  for split in ("train", "test"):
    (data / edges.FOLDER / f"kind.{split}.jsonl").write_text("\n".join(lines))
  rows = edges.measure(Request([str(directory)], data, batch_size=4)).rows
  return {(row["of"], row["layer"]): row["f1"] for row in rows}


def _checkpoint(directory: pathlib.Path, records: pathlib.Path, fields: dict) -> pathlib.Path:
  """Saved parameters of an encoder and a generator, drawn at random; the records they name are gone."""
  fields = {"generator.num_layers": 3, "generator.mlm_layers": (), **fields}
  config = small_config("union", records, fields)
  recipe = build(config, prepared.token_ids(str(records)))
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(recipe.init, jax.random.key(0))
  params = jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)
  if "trunk" in params["generator"]:  # nothing comes out of its last layer
    norm = params["generator"]["trunk"]["layers"]["mlp_norm"]
    norm["scale"][-1] = norm["bias"][-1] = 0
  config.data.directory = str(directory / "gone")
  digest = vocabulary.load(records / "vocabulary").digest
  save_params(directory, params, {"config": config.to_dict(), "vocabulary_digest": digest}, step=3)
  shutil.copytree(records / "vocabulary", directory / "vocabulary")
  return directory


def test_a_generator_is_asked_layer_by_layer_on_text_that_is_not_masked(small_records, tmp_path):
  workdir = _checkpoint(tmp_path / "run", small_records, {"generator.mlm_layers": (1, 3)})
  encoder = {("encoder", layer): 1.0 for layer in range(3)}
  expected = encoder | {("generator", 1): 1.0, ("generator", 3): 0.5}
  assert _scores(workdir, tmp_path / "data") == expected
  saved = open_model(workdir)
  opened = saved.open_encoder("", flag="--vocabulary")
  beside, frozen = open_generator(saved, opened), FrozenEncoder(opened, {}, batch_size=4)
  sentences = [("ba", "dogo", "lumi"), ("ke",) * 40]
  own, pad_id = beside.params, opened.vocabulary.special_ids.pad
  parts = {"embeddings": own["embeddings"] | {"token": opened.params["embeddings"]["token"]}}
  parts["trunk"] = own["trunk"]
  for given, found in zip(frozen.inputs(sentences), frozen.layers_of(beside)(sentences)):
    ids = jnp.asarray(given["ids"])[None]
    _, hidden = encode(parts, beside.settings.members[0], ids, ids != pad_id, pad_id=pad_id, collect="all")
    assert found.shape[1:] == (2, 16)
    for word in set(given["words"]) - {0}:
      means = hidden.layers[:, 0, given["words"] == word].mean(axis=1)
      np.testing.assert_allclose(found[word - 1], means[jnp.asarray([0, 2])], rtol=1e-4, atol=1e-5)
  assert len(found) == 40 and not found[-1].any()
  for three, by_layer in zip(frozen.words(sentences), frozen.layers(sentences), strict=True):
    np.testing.assert_array_equal(three[:, 1], by_layer[:, 1])  # after half of the two layers


def test_separate_generators_are_told_apart(small_records, tmp_path):
  fields = {"generator.separate_layers": (1, 2), "generator.mixture": "uniform"}
  workdir = _checkpoint(tmp_path / "run", small_records, fields)
  scores = _scores(workdir, tmp_path / "data")
  assert [key for key in scores if key[0] != "encoder"] == [("generator 0", 1), ("generator 1", 2)]
  assert set(scores.values()) == {1.0}
