"""The papers' analyses on cases whose answer is known."""

import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from lab.analysis import cases, correction, space
from lab.analysis.__main__ import main
from lab.analysis.outcome import LeftOut, Needs, Outcome
from lab.analysis.request import Request
from pretrain.corruption.generator import GeneratorOutput
from pretrain.ops.draws import row_random
from pretrain.settings.corruption import GeneratorSettings
from tests.pretrain.small_recipe import AMOS, small_batch, small_ids, small_recipe

RNG = np.random.default_rng(0)


def test_uniform_vectors_have_the_analytic_uniformity_and_equal_ones_none():
  points = RNG.standard_normal((4_000, 3))
  points /= np.linalg.norm(points, axis=-1, keepdims=True)
  first, second = space.random_pairs(len(points), 100_000)
  assert (first != second).all()
  # On a sphere in three dimensions a cosine c is uniform: E exp(-2 (2 - 2 c)) = exp(-4) sinh(4) / 4.
  expected = math.log(math.sinh(4) / 4) - 4
  assert space.uniformity(points[first], points[second]) == pytest.approx(expected, abs=0.02)
  assert space.alignment(points, points) == 0 and space.uniformity(points, points) == 0
  assert space.alignment(points, -points) == pytest.approx(4)
  assert space.area_between(np.ones(3), np.zeros(4)) == 1
  assert space.area_between(np.zeros(5), np.zeros(4)) == 0.5


def test_the_measured_area_is_how_often_a_similar_pair_has_the_larger_cosine(monkeypatch):
  east, north, between = np.eye(2)[[0, 0]], np.eye(2)[[1, 1]], np.full((2, 2), 0.5**0.5)
  pairs = {"random": (east, north), "similar": (east, between)}
  monkeypatch.setattr(space, "similar_pairs", lambda request: (["a"], ["b"]))
  monkeypatch.setattr(space, "Embedder", lambda *arguments, **sizes: None)
  encoder = types.SimpleNamespace(config=types.SimpleNamespace(max_length=64))
  monkeypatch.setattr(space, "pairs_of", lambda *arguments: pairs)
  monkeypatch.setattr(Request, "encoders", lambda self: [("run", encoder, None)])
  random, similar = space.measure(Request(["run"])).rows
  assert (random["pairs"], random["mean"], random["uniformity"]) == ("random", 0, pytest.approx(-4))
  assert (similar["pairs"], similar["area"]) == ("similar", 1)
  assert (similar["mean"], similar["alignment"]) == pytest.approx((0.5**0.5, 2 - 2**0.5))


def test_random_pairs_are_of_blocks_and_of_an_import_of_sentences():
  class Words:  # a direction for each text, however it is given
    vocabulary, max_length = types.SimpleNamespace(special_ids=types.SimpleNamespace(pad=0)), 3

    def inputs(self, texts):
      return [{"ids": np.full(2, int(text))} for text in texts]

    def vectors(self, inputs):
      return 2 * np.eye(9)[[row["ids"][0] for row in inputs]]

  similar = (["1", "2", "3"], ["1", "2", "4"])
  blocks = np.asarray([[5, 0, 0, 0], [6, 1, 2, 3]])
  for given, places in ((blocks, [5, 6]), (None, [1, 2, 3])):
    sides = space.pairs_of(Words(), given, similar)
    first, second = sides["random"]
    assert np.unique(first.argmax(-1)).tolist() == places and not np.einsum("nw,nw->n", first, second).any()
    np.testing.assert_array_equal(np.einsum("nw,nw->n", *sides["similar"]), [1, 1, 0])
  with pytest.raises(Needs, match="of an import two pairs"):
    space.pairs_of(Words(), None, None)


def test_a_collapsed_space_does_not_hide_the_density_of_another():
  histogram, density = space.densities("x", RNG.normal(0.9, 1e-3, 1_000))
  # One bin has them all; the estimate is the Gaussian whose deviation is half of the bin's width.
  bin_width = histogram.x[1] - histogram.x[0]
  assert np.max(histogram.y) == pytest.approx(1 / bin_width, rel=0.6)
  assert np.max(density.y) == pytest.approx(2 / bin_width / np.sqrt(2 * np.pi), rel=0.02)


def test_densities_have_an_area_of_one():
  histogram, density = space.densities("x", np.clip(RNG.normal(0.2, 0.1, 5_000), -1, 1))
  assert np.sum(histogram.y[:-1] * np.diff(histogram.x)) == pytest.approx(1)
  assert np.trapezoid(density.y, density.x) == pytest.approx(1, abs=1e-3)
  assert density.x[density.y.argmax()] == pytest.approx(0.2, abs=0.03)


def test_an_encoder_that_copies_everything_is_right_where_nothing_is_replaced():
  ids = np.asarray([[1, 2, 3, 0]])
  inputs = np.asarray([[1, 9, 3, 0]])
  arrays = {"ids": ids, "input_ids": inputs, "copy": np.ones((1, 4), bool), "mixture": inputs, "lm": ids}
  replaced, original = correction.shares(arrays, pad_id=0)
  assert replaced == {"tokens": "replaced", "count": 1, "copy": 0.0, "mixture": 0.0, "lm": 1.0}
  assert original == {"tokens": "original", "count": 2, "copy": 1.0, "mixture": 1.0, "lm": 1.0}
  assert correction.shares(arrays | {"input_ids": ids}, pad_id=0)[0]["copy"] is None


def test_every_layer_of_a_generator_draws_what_it_is_sure_of():
  sure = 1e4 * np.eye(3, 13, k=5)  # of tokens 5, 6 and 7
  nothing = np.zeros((3, 2, 4, 5))
  output = GeneratorOutput(nothing, nothing, sure)
  settings = GeneratorSettings(**base.get_config().generator)
  keys = row_random.step_row_keys(0, 0, np.arange(2))
  drawn = cases.draws(settings, jax.tree.map(jnp.asarray, output), jnp.zeros((13, 5)), keys, 4)
  assert [np.unique(tokens).tolist() for tokens in drawn] == [[5], [6], [7]]


@pytest.mark.nightly  # 5 s, eagerly
def test_draws_of_a_generators_layers_are_at_masked_tokens_alone():
  recipe = small_recipe(AMOS)
  run = types.SimpleNamespace(
    recipe=recipe, eval_batch_of=lambda ids, index, progress: recipe.mask(small_batch(2)._replace(ids=ids))
  )
  params = jax.eval_shape(recipe.init, jax.random.key(0))
  params = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(0, 0.5, leaf.shape), leaf.dtype), params)
  found = cases.describe(run, params, jnp.asarray(small_ids(2)), jnp.int32(0))
  layers = [np.asarray(found[name]) for name in ("layer 1", "layer 2", "layer 3")]
  assert all((layer[~np.asarray(found["selected"])] == 0).all() for layer in layers)
  assert not np.array_equal(layers[0], layers[2]) and found["selected"].any()


def test_an_outcome_is_a_table():
  outcome = Outcome("t", [{"a": 1.0, "b": None}, {"a": 20_000.5, "c": "x"}], [], [])
  assert "| 1.0000 | - | - |" in outcome.report("r").as_markdown()


@pytest.fixture
def one_device(monkeypatch):
  first = jax.devices()[:1]
  for name in ("devices", "local_devices"):
    monkeypatch.setattr(jax, name, lambda *_: first)


def test_the_command_makes_what_it_can_and_skips_the_rest(finished, tmp_path, one_device, capsys):
  flags = [f"--checkpoints={finished}", f"--output={tmp_path}", "--rows=16", "--batch_size=8"]
  assert main(flags) == 0
  listed = json.loads((tmp_path / "analyses.json").read_text())["rows"]
  state = {row["analysis"]: row["what"].partition(":")[0] == "skipped" for row in listed}
  assert state == {
    "cosines": False,
    "blocks": False,
    "edges": True,
    "detection": True,
    "curricula": True,
    "correction": True,
    "mixture": True,
    "generator": True,
    "cases": True,
    "efficiency": False,
  }
  rows = json.loads((tmp_path / "cosines.json").read_text())["rows"]
  assert rows[0]["pairs"] == "random" and -4 <= rows[0]["uniformity"] <= 0
  found = json.loads((tmp_path / "blocks.json").read_text())["rows"]
  assert [row["step"] for row in found] == sorted(row["step"] for row in found) and found[-1]["step"] == 6
  assert all(-1 <= row["sequence_cosine_negative"] <= 1 for row in found)
  assert (tmp_path / "cosines.svg").is_file() and (tmp_path / "efficiency_eval_loss.png").is_file()
  capsys.readouterr()
  assert main([*flags, "--only=mixture"]) == 3
  assert "error: mixture needs metrics of a mixture" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("flags", "code", "line"),
  [
    (("--only=cosine",), 2, "unknown analysis 'cosine'; did you mean 'cosines'"),
    (("--rows=0",), 2, "--rows=0: expected at least 1"),
    (("--data=nowhere",), 3, "--data=nowhere is not a directory"),
    (("--checkpoints=",), 2, "--checkpoints is empty; name a checkpoint"),
    ((), 3, "no checkpoint in"),
  ],
)
def test_mistakes_are_one_line(flags, code, line, tmp_path, capsys):
  assert main([f"--checkpoints={tmp_path}", f"--output={tmp_path / 'out'}", *flags]) == code
  error, *ways = capsys.readouterr().err.splitlines()
  assert line in error and all(way.startswith("  --") for way in ways) and not (tmp_path / "out").exists()


def test_states_after_every_layer_begin_and_end_with_those_of_the_probes(finished, one_device):
  from lab.analysis.words import FrozenEncoder

  ((_, opened),) = Request([str(finished)], batch_size=4).newest(LeftOut())
  encoder = FrozenEncoder(opened.encoder, {}, batch_size=4)
  sentences = [["ba", "dogo", "lumi"], ["ke"] * 40]
  for by_layer, by_depth in zip(encoder.layers(sentences), encoder.words(sentences)):
    assert by_layer.shape[:2] == (len(by_depth), opened.encoder.config.num_layers + 1)
    np.testing.assert_array_equal(by_layer[:, -1], by_depth[:, -1])
