"""Importing folders of stock classes, which transformers itself writes here."""

import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data.errors import DataError
from pretrain.checkpoints.checkpoint import load_params
from pretrain.export.check import comparison
from pretrain.export.import_checkpoint import import_checkpoint
from pretrain.export.stock import read as stock_read
from tests import lines

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

PIECES = {
  "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"),
  "mpnet": ("<s>", "<pad>", "</s>", "[UNK]", "a", "b", "##c", "<mask>"),
}
PIECES["electra"] = PIECES["bert"]


def _folder(path, layout, *, is_safe=True):
  """A small random model of a stock class with its tokenizer, weights spread so that wrong maps show."""
  sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
  sizes |= {"vocab_size": 9, "max_position_embeddings": 12, "initializer_range": 0.3}
  if layout == "electra":
    sizes["embedding_size"] = 8
  torch.manual_seed(0)
  config = transformers.AutoConfig.for_model(layout, **sizes)
  model = transformers.AutoModel.from_config(config)
  model.save_pretrained(path)
  if not is_safe:
    (path / "model.safetensors").unlink()
    torch.save(model.state_dict(), path / "pytorch_model.bin")
  (path / "vocab.txt").write_text("\n".join(PIECES[layout]) + "\n")
  (path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
  return str(path)


def _import(tmp_path, source, said=None, **options):
  with lines.heard([].append if said is None else said.append):
    import_checkpoint(source, str(tmp_path / "out"), **options)


@pytest.mark.parametrize(
  "layout, is_safe", [("bert", True), ("bert", False), ("electra", True), ("mpnet", True)]
)
def test_a_stock_folder_comes_with_its_tokenizer_and_is_compared(tmp_path, layout, is_safe):
  said = []
  _import(tmp_path, _folder(tmp_path / "in", layout, is_safe=is_safe), said)
  (line,) = [line for line in said if line.startswith("Compared with transformers")]
  assert float(line.rpartition(" ")[2]) <= comparison.TOLERANCE
  assert ("ignored: 2 (pooler.dense.bias, pooler.dense.weight)" in said) == (layout != "electra")
  params, meta = load_params(tmp_path / "out")
  assert params["encoder"]["embeddings"]["token"]["embedding"].shape == (9, 8)
  assert meta["config"]["model"]["relative_position"] == ("t5" if layout == "mpnet" else "none")


def test_a_transposed_square_kernel_is_noticed_and_nothing_is_written(tmp_path, monkeypatch):
  source, read = _folder(tmp_path / "in", "bert"), stock_read.from_stock

  def transposed(*arguments, **options):
    imported = read(*arguments, **options)
    attention = imported.params["encoder"]["trunk"]["layers"]["attention"]
    kernel = attention["key"]["kernel"]
    square = kernel.reshape(2, 8, 8).swapaxes(1, 2)
    attention["key"]["kernel"] = np.ascontiguousarray(square).reshape(kernel.shape)
    return imported

  monkeypatch.setattr(stock_read, "from_stock", transposed)
  with pytest.raises(DataError, match="hidden states differ by"):
    _import(tmp_path, source)
  assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_checkpoint_of_a_wrapped_model_is_read_and_said(tmp_path):
  source, said = _folder(tmp_path / "in", "bert"), []
  path = f"{source}/model.safetensors"
  save_file({f"module.{name}": array for name, array in load_file(path).items()}, path)
  _import(tmp_path, source, said)
  assert any(line.startswith("module. at the start of every name") for line in said)


def test_without_the_extra_the_missing_comparison_is_said(tmp_path, monkeypatch):
  said, source = [], _folder(tmp_path / "in", "bert")
  for name in ("torch", "transformers"):
    monkeypatch.setitem(sys.modules, name, None)  # neither found nor importable
  _import(tmp_path, source, said)
  assert any(line.startswith("Skipped the comparison with transformers") for line in said)


def test_a_stock_folder_without_a_tokenizer_is_refused(tmp_path):
  source = _folder(tmp_path / "in", "bert")
  (tmp_path / "in" / "vocab.txt").unlink()
  with pytest.raises(DataError, match="no tokenizer in it"):
    _import(tmp_path, source)
  assert [path.name for path in tmp_path.iterdir()] == ["in"]
