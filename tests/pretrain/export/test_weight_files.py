"""Checkpoint files of others: what is read, and that a bad or hostile one is refused in a line.

PyTorch's files are data: none of their code runs, and what is no tensor is named.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from pretrain.export.weight_files import read_state
from tests.pretrain.export.refusals import failing

WEIGHTS = {
  "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
  "b.bias": np.float32([0.1, -0.5]),
  "position_ids": np.arange(4),
}


@pytest.fixture
def folder(tmp_path):
  """A folder with `model.safetensors` and `config.json`."""
  path = tmp_path / "in"
  (path / "vocabulary").mkdir(parents=True)
  save_file(WEIGHTS, path / "model.safetensors")
  (path / "config.json").write_text('{"model_type": "bert"}')
  return path


def _header(folder, change) -> None:
  """Rewrites the JSON header of `model.safetensors`."""
  path = folder / "model.safetensors"
  content = path.read_bytes()
  length = int.from_bytes(content[:8], "little")
  header = change(content[8 : 8 + length].decode()).encode()
  path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


def test_a_folder_and_its_file_give_the_same_and_names_lose_their_wrappers(folder):
  path = folder / "model.safetensors"
  for name in (folder, path):
    found = read_state(name)
    assert {*found.state} == {"a.weight", "b.bias"}
    for key, array in (found.state | found.buffers).items():
      np.testing.assert_array_equal(array, WEIGHTS[key])
    assert (found.config, found.folder, found.wrapper) == ({"model_type": "bert"}, folder, "")
    assert found.digests == {"model.safetensors": hashlib.sha256(path.read_bytes()).hexdigest()}
  for wrapped in ("module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module."):
    save_file({wrapped + name: array for name, array in WEIGHTS.items()}, path)
    found = read_state(folder)
    assert {*found.state, *found.buffers} == {*WEIGHTS} and found.wrapper == wrapped
    save_file(WEIGHTS | {f"{wrapped}a.weight": WEIGHTS["b.bias"]}, path)
    assert f"{wrapped}a.weight" in read_state(folder).state  # of one tensor alone it is a name


def test_half_precision_becomes_float32_exactly_and_float64_if_it_fits(folder):
  values = np.float32([1.0, -0.33, 3e-5, 65504.0, 0.0])
  half, brain = values.astype(np.float16), values.astype(ml_dtypes.bfloat16)
  wide, mask = np.float64([0.5]), np.asarray([True, False])
  # numpy's writer knows no bfloat16: its bytes under another type's name, then the right name.
  tensors = {"half": half, "brain": brain.view(np.uint16), "wide": wide, "mask": mask}
  save_file(tensors, folder / "model.safetensors")
  _header(folder, lambda text: text.replace('"U16"', '"BF16"'))
  found = read_state(folder)
  assert {array.dtype for array in found.state.values()} == {np.dtype(np.float32)}
  np.testing.assert_array_equal(found.state["half"].astype(np.float16), half)
  np.testing.assert_array_equal(found.state["brain"], brain.astype(np.float32))
  assert found.state["wide"] == 0.5 and found.buffers.keys() == {"mask"}


def test_damaged_files_and_values_are_refused(folder):
  path = folder / "model.safetensors"
  content, said = path.read_bytes(), "damaged safetensors"

  def read(change):
    if isinstance(change, dict):
      save_file(WEIGHTS | change, path)
    else:
      path.write_bytes(content if callable(change) else change)
    if callable(change):
      _header(folder, change)
    read_state(folder)

  rows = [
    ({"w": np.float64([0.1])}, "tensor w is float64"),
    ({"w": np.complex64([1])}, "tensor w has type complex64"),
    ({"a\nb": WEIGHTS["b.bias"]}, r"name is 'a\nb'"),
    *(({"b.bias": np.float32([bad, 1])}, "b.bias has 1 of 2") for bad in (np.nan, np.inf, -np.inf)),
    *((content[:size], said) for size in (0, 4, 8, 60, -1)),
    ((2**62).to_bytes(8, "little") + content[8:], said),
    (lambda text: text.replace("[2,3]", "[2,30]"), said),
    (lambda text: re.sub(r'(offsets":\[\d+),\d+', r"\1,99999999", text, count=1), said),
    (lambda text: text.replace('"F32"', '"F99"', 1), said),
    (lambda text: text.replace("{", "[", 1), said),
  ]
  assert not failing(rows, read)


def test_shards_are_joined_and_an_index_cannot_name_files_elsewhere(tmp_path):
  def index(weight_map):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return read_state(tmp_path)

  weight_map = {"a.weight": "one.safetensors", "b.bias": "two.safetensors"}
  for name, file in weight_map.items():
    save_file({name: WEIGHTS[name]}, tmp_path / file)
  found = index(weight_map)
  assert found.state.keys() == {"a.weight", "b.bias"}
  assert found.digests.keys() == {"one.safetensors", "two.safetensors"}
  save_file(WEIGHTS, tmp_path.parent / "outside.safetensors")
  names = ("../outside.safetensors", "/etc/passwd", "..", "sub/one.safetensors", "a\0b")
  rows = [({"a.weight": name}, "not a file in its folder") for name in names]
  assert not failing([*rows, ({}, "weight_map is missing")], index)
  save_file(WEIGHTS, tmp_path / "two.safetensors")
  assert not failing([(weight_map, "tensor a.weight is in another shard too")], index)
  (tmp_path / "two.safetensors").unlink()
  assert not failing([(weight_map, "shard two.safetensors is missing")], index)


def test_nothing_leads_out_of_a_folder_and_nobody_waits_for_a_pipe(folder, tmp_path):
  (tmp_path / "secret.txt").write_text("of this machine")

  def link(name, target):
    (folder / name).symlink_to(target)
    try:
      read_state(folder)
    finally:
      (folder / name).unlink()

  rows = [(name, tmp_path / "secret.txt", "secret.txt") for name in ("vocab.txt", "vocabulary/vocab.txt")]
  assert not failing([*rows, ("more.safetensors", "/dev/zero", "more.safetensors: a link")], link)
  os.mkfifo(folder / "vocab.txt")
  rows = [(folder, "vocab.txt: not a regular file"), (folder / "vocab.txt", "vocab.txt: not a regular file")]
  (tmp_path / "empty").mkdir()
  rows += [(tmp_path / "empty", "expected one of model.safetensors"), (tmp_path / "no", "no such file")]
  assert not failing(rows, read_state)
  (folder / "vocab.txt").unlink()
  # Links within the folder are followed, and those to the blobs of a download cache.
  (folder / "pytorch.safetensors").symlink_to("model.safetensors")
  assert "a.weight" in read_state(folder).state
  blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "1a2b"
  blobs.mkdir(parents=True)
  snapshot.mkdir(parents=True)
  (folder / "model.safetensors").rename(blobs / "0123")
  (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
  assert "a.weight" in read_state(snapshot).state


class _Code:
  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


def test_a_state_dict_of_either_form_and_the_settings_of_fairseq_are_read(tmp_path):
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  table, path = torch.randn(3, 2), tmp_path / "pytorch_model.bin"
  tensors = {"table": table, "tied": table, "turned": torch.randn(2, 3).T, "ids": torch.arange(3)}
  tensors |= {"half": torch.randn(4, dtype=torch.float16), "mask": torch.ones(2, dtype=torch.bool)}
  tensors["brain"] = torch.nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
  for is_zip in (True, False):
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    found = read_state(path)
    assert found.buffers.keys() == {"ids", "mask"} and found.config == {}
    for name, array in found.state.items():
      assert array.dtype == np.float32
      np.testing.assert_array_equal(array, tensors[name].detach().float().numpy())
  model = argparse.Namespace(encoder_attention_heads=4, rel_pos=1)
  for settings in ({"args": model}, {"args": None, "cfg": {"common": {"seed": 1}, "model": model}}):
    torch.save({**settings, "model": {"w": table}, "optimizer_history": [{"lr": 0.1}]}, path)
    found = read_state(path)
    assert list(found.state) == ["w"] and found.config == {"encoder_attention_heads": 4, "rel_pos": 1}


def test_code_does_not_run_and_what_is_no_state_dict_is_refused(tmp_path):
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  mark, path, one = tmp_path / "was_here", tmp_path / "model.pt", torch.ones(2)
  contents = [
    ({"w": one, "x": _Code(exec, f"open({str(mark)!r}, 'w')")}, "exec"),
    ({"w": one, "x": _Code(os.system, f"touch {mark}")}, "system"),
    ([one], "a list"),
    ({3: one}, "a int"),
    ({"w": {"v": one}}, "entry 'w'"),
    ({"w": one.to_sparse()}, "dense"),
    ({"w": torch.ones(2, dtype=torch.complex64)}, "complex64"),
    ({"w": torch.tensor([1.0, float("nan")])}, "tensor w has 1 of 2"),
    ({}, "no weights"),
  ]

  def run(content, is_zip):
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    read_state(path)

  assert not failing([(content, is_zip, word) for content, word in contents for is_zip in (True, False)], run)
  torch.save({"w": one}, path)
  path.write_bytes(path.read_bytes()[:-9])
  assert not failing([(path, "model.pt")], read_state) and not list(tmp_path.glob("was_here*"))


def test_settings_of_omegaconf_and_arrays_are_read_without_their_classes(tmp_path, monkeypatch):
  """As fairseq 1.0 and Composer save them: the library need not be installed, and none of it is imported."""
  torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
  library = types.ModuleType("omegaconf")

  class Node:
    def __init__(self, **state):
      vars(self).update(state)

  Node.__module__, Node.__qualname__, library.Node = "omegaconf", "Node", Node
  monkeypatch.setitem(sys.modules, "omegaconf", library)
  model = Node(_content={"encoder_attention_heads": Node(_val=4), "rel_pos": 1, "more": Node(_content={})})
  content = {"args": None, "cfg": Node(_content={"model": model}), "model": {"w": torch.ones(2)}}
  torch.save(content | {"best_loss": np.float64(2.5), "rng": [np.arange(3)]}, tmp_path / "model.pt")
  monkeypatch.setitem(sys.modules, "omegaconf", None)
  found = read_state(tmp_path)
  assert list(found.state) == ["w"] and found.config == {"encoder_attention_heads": 4, "rel_pos": 1}
