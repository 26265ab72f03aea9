"""Edge probing: what a span is, how answers are counted, tasks of a treebank, and whose states are asked."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data import vocabulary
from data.errors import DataError
from lab.analysis import edges
from lab.analysis.edges import Annotated, Target
from lab.analysis.outcome import Outcome
from lab.analysis.request import Request
from lab.analysis.words import FrozenEncoder
from pretrain.build import build
from pretrain.checkpoints.opened import open_generator
from pretrain.checkpoints.saved_model import open_model, save_params
from pretrain.models.encoder import encode
from pretrain.reading import prepared
from tests.lab.analysis.test_probe import on_one_device  # noqa: F401 (a fixture)
from tests.pretrain.export import test_import_checkpoint as imports
from tests.pretrain.small_run import small_config

LABELS = {"ba": "x", "ke": "y", "dogo": "x", "lumi": "z"}  # half of them 'x'
DEPTHS = {"separate": {"generator.separate_layers": (1, 2)}, "heads": {"generator.mlm_layers": (1, 3)}}


def test_a_span_is_the_mean_of_its_words_and_two_are_joined():
  states = np.asarray([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])[..., None]  # of three words after two layers
  part = [
    Annotated(("a", "b", "c"), (Target(((0, 2),), ("x",)),)),
    Annotated(("d", "e", "f"), (Target(((1, 2),), ("y", "z")),)),
  ]
  found, labels = edges.vectors(lambda sentences: [states for _ in sentences], part)
  np.testing.assert_array_equal(found, [[[2.0], [20.0]], [[3.0], [30.0]]])
  assert labels == [("x",), ("y", "z")]
  two = [Annotated(("a", "b", "c"), (Target(((2, 3), (0, 2)), ("x",)),))]
  np.testing.assert_array_equal(edges.vectors(lambda _: [states], two)[0], [[[8.0, 2.0], [80.0, 20.0]]])


def test_f1_counts_labels_that_are_wrong_and_labels_that_are_missing():
  gold = [("a",), ("b", "c")]
  assert edges.f1(gold, gold) == 1.0 and edges.f1(gold, [("x",), ()]) == 0.0
  # Two are right, of three that there are and of four that were said.
  assert edges.f1(gold, [("a", "b", "c"), ("b",)]) == pytest.approx(4 / 7)


def test_tasks_of_a_treebank_ask_about_tags_and_about_words_with_their_heads(tmp_path):
  row = "1\tba\t_\tNOUN\t_\t_\t2\tnsubj:pass\t_\t_\n2\tke\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
  (tmp_path / "UD_English-EWT").mkdir()
  for split, number in (("train", 3), ("test", 1)):
    (tmp_path / "UD_English-EWT" / f"x-ud-{split}.conllu").write_text(row * number)
  tags, relations = edges.find(tmp_path, 2)
  assert (tags.name, relations.name) == ("part of speech", "dependency")
  assert [len(task.train) for task in (tags, relations)] == [2, 2] and len(tags.test) == 1
  assert tags.test == [Annotated(("ba", "ke"), (Target(((0, 1),), ("NOUN",)), Target(((1, 2),), ("VERB",))))]
  assert relations.test == [Annotated(("ba", "ke"), (Target(((0, 1), (1, 2)), ("nsubj",)),))]


def _task(folder: pathlib.Path, labels: dict[str, str]) -> pathlib.Path:
  """A task whose sentences are single words, so that whatever tells words apart tells the labels too."""
  (folder / edges.FOLDER).mkdir(parents=True)
  lines = [
    json.dumps({"text": word, "targets": [{"span1": [0, 1], "label": label}]})
    for word, label in labels.items()
  ]
  for split in ("train", "test"):
    (folder / edges.FOLDER / f"kind.{split}.jsonl").write_text("\n".join(lines))
  return folder


def _scores(outcome: Outcome) -> dict[tuple, float]:
  return {(row["of"], row["layer"]): row["f1"] for row in outcome.rows}


def _measure(directory: pathlib.Path, data: pathlib.Path) -> Outcome:
  return edges.measure(Request([str(directory)], data, batch_size=4))


def _checkpoint(directory: pathlib.Path, records: pathlib.Path, fields: dict) -> pathlib.Path:
  """Saved parameters of an encoder and a generator, drawn at random; the records they name are gone."""
  recipe_fields = {"generator.num_layers": 3, "generator.mlm_layers": (), **fields}
  config = small_config("union", records, recipe_fields)
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


def test_a_generator_is_asked_layer_by_layer_beside_the_encoder(small_records, tmp_path):
  data = _task(tmp_path / "data", LABELS)
  workdir = _checkpoint(tmp_path / "run", small_records, DEPTHS["heads"])
  encoder = {("encoder", layer): 1.0 for layer in range(3)}
  outcome = _measure(workdir, data)
  assert _scores(outcome) == encoder | {("generator", 1): 1.0, ("generator", 3): 0.5}
  of_generator = outcome.plots[0].curves[1]
  assert of_generator.name == "kind, generator" and of_generator.x.tolist() == [1, 3]


def test_states_of_a_generators_layers_are_those_of_its_trunk_on_text_that_is_not_masked(
  small_records, tmp_path
):
  saved = open_model(_checkpoint(tmp_path / "run", small_records, DEPTHS["heads"]))
  opened = saved.open_encoder("", flag="--vocabulary")
  beside, frozen = open_generator(saved, opened), FrozenEncoder(opened, {}, batch_size=4)
  sentences = [("ba", "dogo", "lumi"), ("ke",) * 40]
  own, pad_id = beside.params, opened.vocabulary.special_ids.pad
  embeddings = own["embeddings"] | {"token": opened.params["embeddings"]["token"]}
  for given, found in zip(frozen.inputs(sentences), frozen.layers_of(beside)(sentences)):
    ids = jnp.asarray(given["ids"])[None]
    parts = {"embeddings": embeddings, "trunk": own["trunk"]}
    _, hidden = encode(parts, beside.settings.members[0], ids, ids != pad_id, pad_id=pad_id, collect="all")
    assert found.shape[1:] == (2, 16)
    for word in set(given["words"]) - {0}:
      means = hidden.layers[:, 0, given["words"] == word].mean(axis=1)
      np.testing.assert_allclose(found[word - 1], means[jnp.asarray([0, 2])], rtol=1e-4, atol=1e-5)
  assert len(found) == 40 and not found[-1].any()


def test_separate_generators_are_told_apart_and_a_part_that_is_missing_is_named(small_records, tmp_path):
  data = _task(tmp_path / "data", LABELS)
  workdir = _checkpoint(
    tmp_path / "run", small_records, {**DEPTHS["separate"], "generator.mixture": "uniform"}
  )
  scores = _scores(_measure(workdir, data))
  assert [key for key in scores if key[0] != "encoder"] == [("generator 0", 1), ("generator 1", 2)]
  assert set(scores.values()) == {1.0}
  saved = open_model(workdir)
  del saved.params["generator"]["member_1"]["trunk"]
  saved.meta["source"] = {}  # an import may not say how a generator is computed, and none is made up
  assert open_generator(saved, saved.open_encoder("", flag="--vocabulary")) is None
  del saved.meta["source"]
  with pytest.raises(DataError, match=r"generator: .*member_1/trunk.*; is it complete"):
    edges.sides(saved, 4)


def test_an_import_is_asked_though_it_has_no_records(tmp_path):
  source = imports._port(tmp_path / "in")
  imports._import(source, tmp_path / "out", imports._words(tmp_path / "words"))
  scores = _scores(_measure(tmp_path / "out", _task(tmp_path / "data", {"a": "x", "b": "y"})))
  assert scores == {("encoder", layer): 1.0 for layer in range(4)}
