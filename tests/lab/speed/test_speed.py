"""The benchmarks of speed: what they take for a case; that the PyTorch peers do the work they stand for."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import ConfigError, UserError
from lab.speed import ahead, cases, compare, parts, step
from lab.speed.estimate import Forecast
from pretrain.build import build
from pretrain.corruption.masking import TokenIds

SMALL = (
  "model.hidden_size=16",
  "model.mlp_size=32",
  "model.vocab_size=200",
  "model.num_layers=1",
  "model.max_length=32",
)


def test_a_case_is_its_recipe_at_another_size_and_its_tokens_are_neither_alike_nor_special():
  config = cases.make_config("taco_base:tiny", batch=6, length=128, changes=["model.vocab_size=500"])
  assert (config.train.batch_size, config.data.length, config.model.max_length) == (6, 128, 128)
  assert config.objectives.taco.group_size == 2 and config.model.vocab_size == 500  # 2 divides 6 and 32
  with pytest.raises(ConfigError, match=r"model\.layers"):
    cases.make_config("taco_base:tiny", batch=6, length=128, changes=["model.layers=3"])
  first, second = cases.random_ids(config, 2)
  assert first.shape == (6, 128) and first.dtype == np.int32
  assert not np.array_equal(first, second)
  inner = first[:, 1:-1]
  assert inner.min() >= len(cases.SPECIAL) and inner.max() < 500 and len(np.unique(inner)) > 100
  assert set(first[:, 0]) == {cases.SPECIAL["cls"]} and set(first[:, -1]) == {cases.SPECIAL["sep"]}


def test_texts_of_unequal_length_fill_rows_and_the_peer_gets_the_same_ones():
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  config = cases.make_config("roberta_base:tiny:modern_tiny", batch=6, length=128, changes=SMALL[2:4])
  for fill in ("padded", "packed"):
    rows = cases.random_texts(config, fill=fill)
    sizes = [len(text) for row in rows for text in row]
    (ids,) = cases.random_ids(config, fill=fill)
    assert np.sum(ids != cases.SPECIAL["pad"]) == sum(sizes) and len(set(sizes)) > 3
    assert [int(np.sum(row == cases.SPECIAL["cls"])) for row in ids] == [len(row) for row in rows]
    assert (len(sizes) == 6, sum(sizes) > 6 * (128 - 8)) == (fill == "padded", fill == "packed")
    padded, flat = (compare.make_unequal(config, 0, fill=fill, is_flat=flat) for flat in (False, True))
    assert padded["masked"].shape == (len(sizes), 128)
    assert padded["arguments"]["attention_mask"].sum(1).tolist() == sizes
    is_masked = padded["sparse_labels"] >= 0
    assert torch.equal(is_masked, padded["masked"] == cases.SPECIAL["mask"]) and is_masked.any()
    if fill == "packed":
      assert flat["masked"].shape == (1, sum(sizes))
      borders, places = (flat["arguments"][name] for name in ("cu_seq_lens_q", "position_ids"))
      assert borders.tolist() == [0, *np.cumsum(sizes)] and not places[0, borders[:-1].long()].any()


def test_a_case_may_have_a_backbone_and_a_batch_that_grows_is_whole():
  config = cases.make_config("roberta_base:tiny:modern_tiny", batch=4, length=32)
  assert (config.model.position, config.recipe) == ("rope", "roberta_tiny:modern_tiny")
  for changes, microbatches in (((), 1), (("train.microbatches=3",), 3)):
    train = cases.make_config("modernbert_base:tiny", batch=3, length=32, changes=changes).train
    found = train.batch_size, train.batch_size_start, train.microbatches
    assert found == (3, 0, microbatches), changes


def test_a_peer_of_another_backbone_is_refused(monkeypatch):
  for recipe, peer in (("roberta_base:modern", "torch"), ("electra_base:modern", "hugging_face")):
    monkeypatch.setattr(sys, "argv", ["compare", "--recipes", recipe, "--shapes", "2x32", "--peer", peer])
    with pytest.raises(UserError, match="no --peer="):
      compare.main()


def test_a_step_is_measured_whole():
  config = cases.make_config("roberta_base:tiny", batch=2, length=16, changes=SMALL)
  found = step.measure(config, repeats=2)
  assert found["shape"] == "2x16" and found["seconds"] > 0 and found["bytes"]["temporaries"] > 0
  assert np.isfinite(found["loss"])


def test_a_planned_batch_is_rows_times_the_devices_that_share_them():
  config = ahead.planned_config("roberta_base:tiny", 4, 64, 8, ["mesh.data=4", "mesh.tensor=2"])
  assert config.train.batch_size == 16
  found = Forecast("v5e:2x2", "TPU v5 lite", 4, {}, 4, 64, {"total": 1}, True, seconds=0.002, mfu=0.5)
  line = ahead.line("roberta_base:tiny", [], found)
  assert line["milliseconds_estimated"] == 2.0 and line["tokens_per_second_estimated"] == 128_000


def test_a_peer_has_our_sizes_and_learns():
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  from lab.speed import peers

  torch.set_num_threads(1)  # at this size more wait for each other
  for recipe in (
    "roberta_base:tiny",
    "electra_base:tiny",
    "coco_lm_base:tiny",
    "amos_base:tiny",
    "taco_base:tiny",
  ):
    config = cases.make_config(recipe, batch=4, length=32, changes=SMALL)
    torch.manual_seed(0)
    peer, batch = peers.build(config), compare.make_batch(config, 0)
    tokens = TokenIds(**cases.SPECIAL, vocab_size=config.model.vocab_size)
    ours = jax.eval_shape(build(config, tokens).init, jax.random.key(0))
    numbers = sum(leaf.numel() for leaf in peer.parameters())
    assert numbers == pytest.approx(sum(leaf.size for leaf in jax.tree.leaves(ours)), rel=0.1), recipe
    optimizer, losses = torch.optim.Adam(peer.parameters(), lr=1e-2), []
    for _ in range(12):
      loss = peer(batch)
      loss.backward()
      optimizer.step()
      optimizer.zero_grad()
      losses.append(float(loss.detach()))
    assert np.mean(losses[-3:]) < np.mean(losses[:3]), recipe


def test_what_the_benchmarks_import():
  names = ("ahead", "cases", "compare", "gpu_checks", "parts", "step")
  imports = f"import {', '.join(f'benchmarks.{name}' for name in names)}"
  code = f"import benchmarks.gpu_day, sys; print(*sys.modules); {imports}; print(*sys.modules)"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  light, loaded = (line.split() for line in done.stdout.splitlines())
  assert not {"jax", "numpy", "ml_collections", "torch", "absl"} & set(light)
  assert not {"tensorflow", "seqio", "tensorflow_datasets", "transformers"} & set(loaded)


def test_a_form_that_is_wrong_in_one_gradient_is_not_ok(monkeypatch, capsys):
  def part_of(sizes):
    x = jnp.arange(4.0)
    wrong = jax.custom_vjp(lambda x: x * x)
    wrong.defvjp(lambda x: (x * x, x), lambda x, given: (given * x,))
    return parts.Part({parts.OURS: wrong, parts.PLAIN: lambda x: x * x}, (x,))

  monkeypatch.setitem(parts.PARTS, "attention", part_of)
  line = parts.measure("attention", parts.Sizes(1, 1, 1, 1, 1, "float32"), repeats=1)
  assert line["largest_difference"] == pytest.approx(0.5) and not line["ok"]
  assert line["forms"][parts.OURS]["seconds"] > 0
  for part, code in (("attention", 1), ("lookup", 0)):
    flags = ["parts", "--check", "--parts", part, "--shape", "2x8", "--width=8", "--vocabulary=9"]
    monkeypatch.setattr(sys, "argv", flags)
    assert parts.main() == code


def test_every_part_is_right_here_with_padding_windows_and_odd_lengths():
  sizes = parts.Sizes(3, 64, 32, 2, 70, "float32")
  lines = [parts.measure(part, sizes, repeats=0) for part in parts.PARTS]
  assert [line["part"] for line in lines if not line.get("ok")] == list(parts.UNLIKE)
