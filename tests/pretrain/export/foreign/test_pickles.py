"""PyTorch's files are data: none of their code runs, and what is no tensor is named."""

import argparse
import os

import numpy as np
import pytest

from pretrain.export.foreign.files import read_state
from tests.pretrain.export.refusals import failing

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")


class _Code:
  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


def test_a_state_dict_of_either_form_and_the_settings_of_fairseq_are_read(tmp_path):
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
