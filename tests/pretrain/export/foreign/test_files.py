"""Checkpoint files of others. Run: python -m pytest tests/pretrain/export/foreign/test_files.py"""

import hashlib
import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from data.errors import DataError
from pretrain.export.foreign.files import read_state

WEIGHTS = {
  "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
  "b.bias": np.float32([0.1, -0.5]),
  "position_ids": np.arange(4),
}


@pytest.fixture
def folder(tmp_path):
  """A folder with `model.safetensors` and `config.json`."""
  save_file(WEIGHTS, tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text('{"model_type": "bert"}')
  return tmp_path


def _header(folder, change) -> None:
  """Rewrites the JSON header of `model.safetensors`."""
  path = folder / "model.safetensors"
  content = path.read_bytes()
  length = int.from_bytes(content[:8], "little")
  header = change(content[8 : 8 + length].decode()).encode()
  path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


def _refused(path, pattern) -> str:
  with pytest.raises(DataError, match=pattern) as caught:
    read_state(path)
  assert "\n" not in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_a_folder_and_its_file_give_the_same(folder, name):
  found = read_state(folder / name)
  assert found.state.keys() == {"a.weight", "b.bias"}
  for key, array in found.state.items():
    np.testing.assert_array_equal(array, WEIGHTS[key])
  np.testing.assert_array_equal(found.buffers["position_ids"], WEIGHTS["position_ids"])
  assert (found.config, found.folder) == ({"model_type": "bert"}, folder)
  digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
  assert found.digests == {"model.safetensors": digest}


@pytest.mark.parametrize(
  "wrapped", ["module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_fsdp_wrapped_module.{}"]
)
def test_names_of_a_wrapped_model_are_those_of_the_model(wrapped, folder):
  save_file({wrapped.format(name): array for name, array in WEIGHTS.items()}, folder / "model.safetensors")
  found = read_state(folder)
  assert {*found.state, *found.buffers} == {*WEIGHTS}
  assert found.wrapper == wrapped.removesuffix("{}")
  save_file(WEIGHTS | {wrapped.format("a.weight"): WEIGHTS["b.bias"]}, folder / "model.safetensors")
  assert wrapped.format("a.weight") in read_state(folder).state  # of one tensor alone it is a name


def test_half_precision_becomes_float32_exactly(tmp_path):
  import ml_dtypes

  values = np.float32([1.0, -0.33, 3e-5, 65504.0, 0.0])
  half, brain = values.astype(np.float16), values.astype(ml_dtypes.bfloat16)
  # numpy's writer knows no bfloat16: its bytes under another type's name, then the right name.
  save_file({"half": half, "brain": brain.view(np.uint16)}, tmp_path / "model.safetensors")
  _header(tmp_path, lambda text: text.replace('"U16"', '"BF16"'))
  state = read_state(tmp_path).state
  assert state["half"].dtype == state["brain"].dtype == np.float32
  np.testing.assert_array_equal(state["half"].astype(np.float16), half)
  np.testing.assert_array_equal(state["brain"], brain.astype(np.float32))


def test_float64_that_float32_cannot_hold_is_refused(tmp_path):
  save_file({"w": np.float64([0.5])}, tmp_path / "model.safetensors")
  assert read_state(tmp_path).state["w"] == 0.5
  save_file({"w": np.float64([0.1])}, tmp_path / "model.safetensors")
  _refused(tmp_path, "tensor w is float64")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_named(folder, value):
  save_file({**WEIGHTS, "b.bias": np.float32([value, 1.0])}, folder / "model.safetensors")
  _refused(folder, "tensor b.bias has 1 of 2 values that are NaN or infinity")


@pytest.mark.parametrize("size", [0, 4, 8, 60, -1])
def test_truncated_safetensors_are_refused(folder, size):
  path = folder / "model.safetensors"
  path.write_bytes(path.read_bytes()[:size])
  assert "model.safetensors" in _refused(folder, "damaged safetensors")


@pytest.mark.parametrize(
  "change",
  [
    lambda text: text.replace("[2,3]", "[2,30]"),
    lambda text: re.sub(r'"data_offsets":\[(\d+),\d+\]', r'"data_offsets":[\1,99999999]', text, count=1),
    lambda text: text.replace('"F32"', '"F99"', 1),
    lambda text: text.replace("{", "[", 1),
  ],
)
def test_headers_that_lie_are_refused(folder, change):
  _header(folder, change)
  _refused(folder, "damaged safetensors")


def test_a_header_longer_than_the_file_is_refused(folder):
  path = folder / "model.safetensors"
  path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])
  _refused(folder, "damaged safetensors")


def _shard(tmp_path, weight_map) -> None:
  for file in {name for name in weight_map.values() if "/" not in name}:
    tensors = {name: WEIGHTS[name] for name, owner in weight_map.items() if owner == file}
    save_file(tensors, tmp_path / file)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_joined(tmp_path):
  _shard(tmp_path, {"a.weight": "one.safetensors", "b.bias": "two.safetensors"})
  found = read_state(tmp_path)
  assert found.state.keys() == {"a.weight", "b.bias"}
  assert found.digests.keys() == {"one.safetensors", "two.safetensors"}


def test_a_missing_shard_is_named(tmp_path):
  _shard(tmp_path, {"a.weight": "one.safetensors", "b.bias": "two.safetensors"})
  (tmp_path / "two.safetensors").unlink()
  _refused(tmp_path, r"shard two\.safetensors is missing")


def test_a_tensor_in_two_shards_is_refused(tmp_path):
  _shard(tmp_path, {"a.weight": "one.safetensors", "b.bias": "two.safetensors"})
  save_file(WEIGHTS, tmp_path / "two.safetensors")
  _refused(tmp_path, "tensor a.weight is in another shard too")


@pytest.mark.parametrize(
  "name", ["../outside.safetensors", "/etc/passwd", "..", "sub/one.safetensors", "a\0b"]
)
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
  folder = tmp_path / "folder"
  folder.mkdir()
  save_file(WEIGHTS, tmp_path / "outside.safetensors")
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": name}}))
  _refused(folder, "not a file in its folder")


@pytest.mark.parametrize("name", ["sha256.txt", "SHA256SUMS"])
def test_a_list_of_digests_is_held_against_the_files(folder, name):
  lines = [
    f"{hashlib.sha256((folder / file).read_bytes()).hexdigest()}  {file}"
    for file in ("model.safetensors", "config.json")
  ]
  (folder / name).write_text("\n".join(lines) + "\n")
  read_state(folder)
  (folder / "config.json").write_text("{}")
  _refused(folder, f"config.json: its sha256 is .* from {name};")
  (folder / name).write_text(lines[1] + "\n")
  _refused(folder, "model.safetensors, a file of weights, is not listed")
  (folder / name).write_text("0" * 64 + "  ../model.safetensors\n")
  _refused(folder, "line 1 is")


def test_a_folder_without_a_checkpoint_says_what_it_looked_for(tmp_path):
  _refused(tmp_path, r"no checkpoint in it; expected one of model\.safetensors")
  _refused(tmp_path / "nowhere", "no such file")


def test_names_that_cannot_be_printed_are_refused(tmp_path):
  save_file({"a\nb": WEIGHTS["b.bias"]}, tmp_path / "model.safetensors")
  _refused(tmp_path, r"a tensor's name is 'a\\nb'; expected printable characters")
