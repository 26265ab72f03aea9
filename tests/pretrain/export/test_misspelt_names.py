"""One bit of a tensor's name is wrong: the import refuses it by a line with both names."""

import pathlib
import random
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from data.errors import DataError
from data.files import sha256
from pretrain.export.folders import save_tensors
from pretrain.export.foreign.files import ForeignCheckpoint, read_state
from pretrain.export.foreign.recognise import recognise
from pretrain.export.import_checkpoint import report_names
from tests.pretrain.export.official.test_names import fairseq_state, hugging_face_state
from tests.pretrain.export.stock.test_read import stock_model
from tests.pretrain.export.test_import_checkpoint import FAIRSEQ, PORT


def _read(state, config):
  """The names that an import counts as read."""
  foreign = ForeignCheckpoint(state, {}, config, pathlib.Path("folder"), {})
  recognised = recognise(foreign)
  report_names(foreign, recognised, (), lambda line: None)
  return recognised.matched


def _flipped(rng, name, names):
  """The name with one wrong bit, printable and not another of the names, which would be refused before."""
  while True:
    at = rng.randrange(len(name))
    wrong = name[:at] + chr(ord(name[at]) ^ 1 << rng.randrange(7)) + name[at + 1 :]
    if wrong.isprintable() and wrong not in names:
      return wrong


def _without_prefix(name):
  """A name of a stock model or of the port as error lines print it, without the model's prefix."""
  return re.sub(r"^(bert|cocolm)\.", "", name)


def _case(kind):
  if kind == "fairseq":
    return fairseq_state(mixture=True), FAIRSEQ
  if kind == "port":
    return hugging_face_state("cocolm."), PORT
  return stock_model(kind)[1:]


@pytest.mark.parametrize("kind", ["fairseq", "port", "BertForMaskedLM", "BertModel"])
def test_a_wrong_bit_in_a_name_is_refused_with_both_names(kind):
  state, config = _case(kind)
  read, rng = _read(state, config), random.Random(0)
  assert len(read) == len(state) - 2 * (kind == "BertModel")  # its pooler, which nothing here reads
  for name in state:
    wrong = _flipped(rng, name, state)
    with pytest.raises(DataError) as raised:
      _read({wrong if other == name else other: array for other, array in state.items()}, config)
    line = str(raised.value)
    for one in (name, wrong):
      assert one in line or _without_prefix(one) in line or re.sub(r"\.\d+\.", ".{}.", one) in line, (
        one,
        line,
      )
    assert "\n" not in line


def test_a_wrong_bit_in_our_own_files_is_noticed_by_their_digest(tmp_path):
  names = ("heads/mlm/norm/scale", "generator/mixture/kernel", "encoder/embeddings/norm/bias")
  path = tmp_path / "model.safetensors"
  save_tensors(path, {name: np.ones(2, np.float32) for name in names})
  (tmp_path / "sha256.txt").write_text(f"{sha256(path)}  model.safetensors\n")
  assert set(read_state(tmp_path).state) == set(names)
  content = path.read_bytes()
  path.write_bytes(content.replace(b'"heads/mlm/norm/scale"', b'"heads/mlm/nnrm/scale"'))
  with pytest.raises(DataError, match=r"sha256"):
    read_state(tmp_path)


def test_names_that_cannot_be_printed_are_refused(tmp_path):
  save_file({"a\nb": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
  with pytest.raises(DataError, match=r"a tensor is called 'a\\nb'; expected a printable name"):
    read_state(tmp_path)
