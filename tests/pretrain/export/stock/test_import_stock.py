"""Importing folders of stock classes, which transformers itself writes here."""

import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from pretrain.checkpoints.checkpoint import load_params
from pretrain.export.import_checkpoint import TOLERANCE, import_checkpoint
from pretrain.export.stock.convert import from_stock
from tests import lines
from tests.pretrain.export.stock.test_read import FIELDS, ROPE
from tests.pretrain.export.stock_cases import assert_same_params

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c")
SIZES = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 12}
SIZES |= {"vocab_size": 9, "max_position_embeddings": 60}


def write(folder, name: str, *, kind: str = "", **fields) -> None:
  """A random model of a stock class in a folder with a WordPiece tokenizer; its weights are spread."""
  fields = SIZES | FIELDS[name] | fields
  config = transformers.AutoConfig.for_model(name, **fields)
  torch.manual_seed(0)
  model = getattr(transformers, kind)(config) if kind else transformers.AutoModel.from_config(config)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.3)
  model.save_pretrained(folder)
  pieces = ("<s>", "<pad>", "</s>", "[UNK]", "a", "b", "##c", "<mask>") if name == "mpnet" else PIECES
  (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
  (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def change(folder, *left_out: str, **fields) -> None:
  """Changes the folder's config.json."""
  config = json.loads((folder / "config.json").read_text()) | fields
  (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in left_out}))


def bring(folder, **options) -> list[str]:
  """Imports a folder to `out` beside it; returns the lines."""
  said: list[str] = []
  with lines.heard(said.append):
    import_checkpoint(str(folder), str(folder.with_name(f"{folder.name}-out")), **options)
  return said


def difference(said: list[str]) -> float:
  """Returns the largest difference between our hidden states and those of transformers."""
  (line,) = [line for line in said if line.startswith("Compared with transformers")]
  return float(line.rpartition(" ")[2])


def test_a_folder_of_a_class_comes_with_its_tokenizer_and_is_compared(tmp_path, monkeypatch):
  for name, kind, position in (("bert", "BertForSequenceClassification", "none"), ("mpnet", "", "t5")):
    folder = tmp_path / name
    write(folder, name, kind=kind, vocab_size=16)  # rows to spare
    if name == "mpnet":  # as PyTorch's own file
      state = load_file(folder / "model.safetensors")
      torch.save({key: torch.tensor(array) for key, array in state.items()}, folder / "pytorch_model.bin")
      (folder / "model.safetensors").unlink()
    said = bring(folder)
    assert difference(said) <= TOLERANCE == 1e-5
    assert ("ignored: 2 (pooler.dense.bias, pooler.dense.weight)" in said) == (name == "mpnet")
    assert any("pair is segment 1" in line for line in said) == (name == "bert")
    params, meta = load_params(tmp_path / f"{name}-out")
    assert params["encoder"]["embeddings"]["token"]["embedding"].shape == (16, 8)
    assert meta["config"]["model"]["relative_position"] == position
  monkeypatch.setitem(sys.modules, "transformers", None)  # neither found nor importable
  said = bring(folder.rename(tmp_path / "again"))
  assert any(line.startswith("Skipped the comparison with transformers") for line in said)


def test_both_spellings_with_a_local_base_of_minus_one_and_the_training_codes_names_are_one_model(tmp_path):
  folder = tmp_path / "in"
  rope = dict.fromkeys(ROPE, ROPE["full_attention"])
  write(folder, "modernbert", kind="ModernBertForMaskedLM", rope_parameters=rope)
  state = load_file(folder / "model.safetensors")
  expected = from_stock(state, json.loads((folder / "config.json").read_text())).params
  rope["sliding_attention"] = {"rope_type": "default", "rope_theta": -1}
  change(folder, global_attn_every_n_layers=3, mlp_dropout=0.25, rope_parameters=rope)
  said = [bring(folder)]
  assert any("mlp_dropout=0.25" in line for line in said[0])
  # Without what transformers writes from 5.0 on, in FlexBERT's names, of a wrapped model.
  change(folder, "layer_types", "rope_parameters", global_rope_theta=5000.0, local_rope_theta=-1)
  raw = {"model.decoder.weight": state["model.embeddings.tok_embeddings.weight"]}
  for name, array in state.items():
    flex = re.sub(r"^model\.", "model.bert.", name).replace("bert.layers", "bert.encoder.layers")
    raw[flex if flex.startswith("model.") else f"model.{name}"] = array
  assert "model.bert.encoder.layers.0.attn.Wqkv.weight" in raw and "model.bert.final_norm.weight" in raw
  model = {f"module.{name}": torch.tensor(array) for name, array in raw.items()}
  (folder / "model.safetensors").unlink()
  torch.save({"state": {"model": model}, "rng": [np.array(1)]}, folder / "ep0-ba10-rank0.pt")
  said.append(bring(folder.rename(tmp_path / "again")))
  assert any(line.startswith("module. at the start of every name") for line in said[1])
  for name, of_import in zip(("in", "again"), said):
    assert difference(of_import) <= 1e-5
    assert any("local_rope_theta is -1" in line and "5000" in line for line in of_import)
    params, meta = load_params(tmp_path / f"{name}-out")
    model = meta["config"]["model"]
    assert (model["rope_theta"], model["rope_theta_local"], model["global_every"]) == (5000.0, 5000.0, 3)
    assert_same_params(params, expected)
