"""PyTorch's files are data. Run: python -m pytest tests/pretrain/export/foreign/test_pickles.py"""

import argparse
import sys
import types
import zipfile

import numpy as np
import pytest

from data.errors import DataError
from pretrain.export.foreign.files import read_state

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")


def _refused(path, pattern) -> None:
  with pytest.raises(DataError, match=pattern) as caught:
    read_state(path)
  assert "\n" not in str(caught.value) and path.name in str(caught.value)


@pytest.fixture
def path(tmp_path):
  return tmp_path / "pytorch_model.bin"


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_state_dict_of_either_form_is_read(path, is_zip):
  table = torch.randn(3, 2)
  tensors = {
    "table": table,
    "tied": table,
    "turned": torch.randn(2, 3).T,
    "half": torch.randn(4, dtype=torch.float16),
    "brain": torch.nn.Parameter(torch.randn(4, dtype=torch.bfloat16)),
    "ids": torch.arange(3),
    "mask": torch.ones(2, dtype=torch.bool),
  }
  torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
  found = read_state(path)
  assert found.buffers.keys() == {"ids", "mask"}
  for name, array in found.state.items():
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, tensors[name].detach().float().numpy())


@pytest.mark.parametrize("settings", ["args", "cfg"])
def test_settings_of_fairseq_are_read(path, settings):
  model = argparse.Namespace(encoder_attention_heads=4, rel_pos=1)
  value = model if settings == "args" else {"common": {"seed": 1}, "model": model}
  content = {settings: value, "model": {"w": torch.ones(2)}, "optimizer_history": [{"lr": 0.1}]}
  torch.save(content, path)
  found = read_state(path)
  assert list(found.state) == ["w"]
  assert found.config == {"encoder_attention_heads": 4, "rel_pos": 1}


class _Node:
  """As OmegaConf's nodes are pickled: no arguments, attributes in a dict."""

  def __init__(self, **attributes):
    self.__dict__.update(attributes)


def _called(*_, **__):
  raise AssertionError("a class named in a checkpoint was called")


def test_omegaconf_is_read_without_being_imported(path, monkeypatch):
  module = types.ModuleType("omegaconf.dictconfig")
  _Node.__module__, _Node.__qualname__ = module.__name__, "DictConfig"
  module.DictConfig = _Node
  monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
  monkeypatch.setitem(sys.modules, module.__name__, module)
  leaf, kind = _Node(_val=12, _parent=None), _Node(_content=None, _val=None)
  model = _Node(_content={"encoder_attention_heads": leaf, "nothing": kind, "text": "x"}, _metadata=kind)
  torch.save({"args": None, "cfg": _Node(_content={"model": model}), "model": {"w": torch.ones(2)}}, path)
  monkeypatch.setattr(_Node, "__init__", _called)
  monkeypatch.setattr(_Node, "__setstate__", _called, raising=False)
  assert read_state(path).config == {"encoder_attention_heads": 12, "nothing": None, "text": "x"}


class _Code:
  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
  "function, name", [(exec, "exec"), (eval, "eval"), (__import__("os").system, "system")]
)
def test_code_is_refused_by_name_and_does_not_run(path, tmp_path, function, name, is_zip):
  mark = tmp_path / "was_here"
  text = f"touch {mark}" if name == "system" else f"open({str(mark)!r}, 'w')"
  torch.save({"w": torch.ones(2), "x": _Code(function, text)}, path, _use_new_zipfile_serialization=is_zip)
  _refused(path, rf"would call \S*{name}\b.*was not run")
  assert not mark.exists()


def test_names_that_stand_in_for_settings_cannot_call_either(path, tmp_path):
  mark = tmp_path / "was_here"
  content = {"w": torch.ones(2), "x": _Code(np.fromfile, str(mark)), "y": _Code(np.save, str(mark), 1)}
  torch.save({"args": None, "extra_state": content, "model": {"w": torch.ones(2)}}, path)
  assert list(read_state(path).state) == ["w"]
  assert not list(tmp_path.glob("was_here*"))


@pytest.mark.parametrize(
  "content, pattern",
  [
    ([torch.ones(2)], "it contains a list"),
    ({"w": 3.0}, "entry 'w' is a float"),
    ({3: torch.ones(2)}, "a key is a int"),
    ({"w": {"v": torch.ones(2)}}, "entry 'w' is a dict"),
    ({"w": torch.ones(2).to_sparse()}, "expected a dense tensor"),
    ({"w": torch.ones(2, device="meta")}, "expected a dense tensor"),
    ({"w": torch.ones(2, dtype=torch.complex64)}, "has type torch.complex64"),
    ({"w": torch.ones(2).to(torch.float8_e4m3fn)}, "has type torch.float8"),
    ({"w": torch.tensor([1.0, float("nan")])}, "tensor w has 1 of 2 values"),
    ({"w": torch.ones(1).expand(10**6, 10**6)}, "tensor w claims 1,000,000,000,000 elements"),
    ({}, "contains no weights"),
  ],
)
def test_what_is_no_state_dict_is_refused(path, content, pattern):
  torch.save(content, path)
  _refused(path, pattern)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
def test_truncated_files_are_refused(path, part, is_zip):
  torch.save({"w": torch.ones(50), "v": torch.ones(50)}, path, _use_new_zipfile_serialization=is_zip)
  content = path.read_bytes()
  path.write_bytes(content[: int(part * len(content))])
  _refused(path, "not a PyTorch checkpoint|damaged")


def test_compressed_entries_are_refused(path):
  torch.save({"w": torch.rand(10_000), "v": torch.rand(10_000)}, path)  # neither is larger than the file
  with zipfile.ZipFile(path) as archive:
    entries = {name: archive.read(name) for name in archive.namelist()}
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in entries.items():
      archive.writestr(name, content)
  _refused(path, "is compressed or larger than the file")


def test_settings_that_never_end_are_refused(path):
  nested: list = ["x"]
  for _ in range(40):
    nested = [nested, nested]
  torch.save({"args": {"a": nested}, "model": {"w": torch.ones(2)}}, path)
  with pytest.raises(DataError, match="more than 100,000 settings"):
    read_state(path)
