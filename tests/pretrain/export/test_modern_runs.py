"""Runs on a modern backbone, exported as stock classes and back; a stock model trained on and exported.

Run: python -m pytest tests/pretrain/export/test_modern_runs.py
"""

import json
import re

import numpy as np
import pytest

from configs import backbones
from pretrain.checkpoints.checkpoint import read_meta, step_path
from pretrain.export import __main__
from pretrain.export.import_checkpoint import import_checkpoint
from tests import lines
from tests.pretrain import small_run

torch = pytest.importorskip("torch", reason="needs requirements-export.txt")
transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")

_SIZES = {
  "model.num_layers": 3,
  "model.hidden_size": 16,
  "model.mlp_size": 24,
  "model.window": 8,
  "model.global_every": 2,
  "model.init_stddev": 0.1,
}
_TAGGER, _LM = "ModernBertForTokenClassification", "ModernBertForMaskedLM"
RUNS = {  # name: recipe of small_run, fields, class
  "mlm": ("mlm", {}, _LM),
  "electra": ("coco_lm", {"objectives.clm.weight": 0.0, "objectives.scl.weight": 0.0}, _TAGGER),
  "coco_lm": ("coco_lm", {}, _LM),
  "amos": ("union", {f"objectives.{name}.weight": 0.0 for name in ("clm", "scl", "taco")}, _TAGGER),
  "taco": ("mlm", {"objectives.taco.weight": 1.0}, _LM),
}
_NIGHTLY = ("electra", "taco")


def _config(recipe: str, records, fields: dict):
  config = backbones.apply(small_run.small_config(recipe, records), "modern_tiny")
  config.update_from_flattened_dict(_SIZES | fields)
  config.recipe = recipe
  return config


def _same(first, second) -> None:
  small_run.assert_same_params(small_run.saved_params(first), small_run.saved_params(second))


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=pytest.mark.nightly if name in _NIGHTLY else ()) for name in RUNS]
)
def test_a_trained_run_of_an_objective_becomes_a_stock_class_and_comes_back(
  name, small_records, tmp_path, capsys, in_this_process, export
):
  recipe, fields, kind = RUNS[name]
  assert small_run.run_training(_config(recipe, small_records, fields), tmp_path / "run") == 0
  flags = ["--generator"] if name in ("coco_lm", "amos") else []
  assert export(tmp_path / "run", tmp_path / "out", *flags) == 0, capsys.readouterr().err
  printed = capsys.readouterr().err
  differences = [float(each) for each in re.findall(r"(?:states|logits) (\d[\d.e-]+)", printed)]
  assert len(differences) >= 2 and max(differences) <= 1e-5 and "beyond the window" in printed
  assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [kind]
  card = (tmp_path / "out" / "README.md").read_text()
  assert f"class `{kind}`" in card and "rotary positions" in card
  task = "fill-mask" if kind == _LM else "token-classification"
  assert f'`pipeline("{task}", model="out")`' in card
  assert ('`classifier_activation` is "linear"' in card) == (recipe != "mlm")
  labels = {
    each.get("entity") for each in transformers.pipeline(task, model=str(tmp_path / "out"))("Ba [MASK] ba.")
  }
  assert labels <= {"ORIGINAL", "REPLACED"} if task == "token-classification" else labels == {None}
  assert __main__.main(["import", f"--from={tmp_path / 'out'}", f"--output={tmp_path / 'back'}"]) == 0
  _same(tmp_path / "run", tmp_path / "back")
  heads = {path.name for path in (tmp_path / "out").glob("generator*")}
  assert heads == {"coco_lm": {"generator"}, "amos": {"generator_layer_1", "generator_layer_2"}}.get(
    name, set()
  )


def test_a_stock_model_is_trained_on_and_fills_masks(
  small_records, tmp_path, capsys, in_this_process, export
):
  vocabulary = small_records / "vocabulary"
  sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
  sizes |= {"vocab_size": small_run.VOCAB_SIZE + 4, "local_attention": 8, "pad_token_id": 1}
  torch.manual_seed(0)
  stock = transformers.ModernBertForMaskedLM(
    transformers.ModernBertConfig(**sizes, max_position_embeddings=64, global_attn_every_n_layers=3)
  )
  stock.save_pretrained(tmp_path / "stock")
  said: list[str] = []
  with lines.heard(said.append):
    import_checkpoint(str(tmp_path / "stock"), str(tmp_path / "in"), vocabulary_directory=str(vocabulary))
  assert any(line.startswith("Compared with transformers: hidden states differ") for line in said)
  config = small_run.small_config("mlm", small_records)
  config.model.update(read_meta(step_path(tmp_path / "in"))["config"]["model"])
  steps = {"train.total_steps": 50, "train.eval_every": 50, "train.checkpoint_every": 50}
  config.update_from_flattened_dict(
    steps | {"train.init_from": str(tmp_path / "in"), "optimizer.learning_rate": 5e-3}
  )
  assert small_run.run_training(config, tmp_path / "run") == 0
  losses = [line["train/loss"] for line in small_run.metric_lines(tmp_path / "run") if "train/loss" in line]
  assert losses[-1] < losses[0] - 0.5
  assert export(tmp_path / "run", tmp_path / "out", "--to=modernbert") == 0, capsys.readouterr().err
  fill = transformers.pipeline("fill-mask", model=str(tmp_path / "out"))
  tokenizer = fill.tokenizer
  assert tokenizer is not None
  found = fill(f"Ba {tokenizer.mask_token} ba.", top_k=3)
  model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
  inputs = tokenizer(f"Ba {tokenizer.mask_token} ba.", return_tensors="pt")
  at = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
  with torch.no_grad():
    best = np.argsort(model(**inputs).logits[0, at].numpy())[::-1][:3]
  assert [each["token"] for each in found] == best.tolist()
