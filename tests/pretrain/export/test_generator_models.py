"""The heads of a generator as models of their own.

Run: python -m pytest tests/pretrain/export/test_generator_models.py
"""

import dataclasses
import json

import jax
import numpy as np
import pytest

from data.errors import ConfigError
from pretrain.corruption import generator
from pretrain.export import __main__
from pretrain.export.generator_models import generator_models
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab.vocab_cross_entropy import vocab_logits
from tests.pretrain.small_recipe import AMOS, LENGTH, TOKENS, random_params, small_batch, small_recipe
from tests.pretrain.test_segments import MODERN

CASES = {
  "inner heads": AMOS | MODERN,
  "inner heads after LN": AMOS | {"model.relative_position": "none"},
  "separate": AMOS | MODERN | {"generator.mlm_layers": (), "generator.separate_layers": (1, 3)},
  "own embeddings": AMOS | MODERN | {"generator.share_embeddings": "none", "generator.mlm_layers": ()},
  "a difference": AMOS | MODERN | {"generator.share_embeddings": "gdes", "generator.mlm_layers": ()},
  "all shared": AMOS | MODERN | {"generator.share_embeddings": "all", "generator.mlm_layers": (2, 3)},
  "narrow": AMOS
  | MODERN
  | {"generator.hidden_size": 16, "generator.mlm_layers": (), "generator.num_heads": 2},
}
for _name in ("separate", "own embeddings", "a difference", "narrow"):
  CASES[_name] = CASES[_name] | {"generator.mixture": "none" if _name != "separate" else "uniform"}


@pytest.mark.parametrize("name", CASES)
def test_a_head_with_its_layers_predicts_as_the_generator(name):
  recipe = small_recipe(CASES[name])
  params = jax.tree.map(np.asarray, random_params(recipe))
  assert recipe.generator is not None
  settings, masked = recipe.generator, recipe.mask(small_batch(lengths=[16, 12, 9, 16])).corrupted
  shared = params["encoder"]["embeddings"]
  output = jax.jit(
    lambda params: generator.run(
      params, shared, settings, masked.masking, masked.token_mask, TOKENS, row_keys=None
    )
  )(params["generator"])
  table = generator.token_table(params["generator"], shared, settings)
  fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
  fields = {each: list(fields[each]) if isinstance(fields[each], tuple) else fields[each] for each in fields}
  for derived in ("members", "token_size"):
    del fields[derived]
  fields |= {"mlm_layers": [] if settings.is_separate else list(settings.mlm_layers)}
  found = list(generator_models(params, fields, recipe.encoder))
  depths = settings.mlm_layers
  assert [model.config.num_layers for model in found] == list(depths)
  for number, model in enumerate(found):
    ids, mask = masked.masking.masked_ids, masked.token_mask
    hidden = encoder_model.encode(model.params["encoder"], model.config, ids, mask, pad_id=TOKENS.pad)[1].last
    own = model.params["heads"]["mlm"]
    at = heads.apply_transform(own, model.config, take_positions(hidden, masked.masking.positions))
    logits = vocab_logits(at, model.params["encoder"]["embeddings"]["token"]["embedding"], own["bias"])
    bias = output.biases[min(number, len(output.biases) - 1)]
    expected = vocab_logits(output.transformed[number], table, bias)
    where = np.asarray(masked.masking.weights) > 0
    np.testing.assert_allclose(
      jax.nn.log_softmax(logits)[where], jax.nn.log_softmax(expected)[where], atol=2e-5
    )
    assert hidden.shape[1] == LENGTH


def test_a_projection_after_the_embeddings_and_a_missing_generator_are_refused():
  fields = {"generator.hidden_size": 16, "generator.projection": "embeddings", "generator.mixture": "none"}
  recipe = small_recipe(AMOS | MODERN | fields | {"generator.mlm_layers": ()})
  params = jax.tree.map(np.asarray, random_params(recipe))
  given = {"num_layers": 3, "hidden_size": 16, "projection": "embeddings", "share_embeddings": "tokens"}
  with pytest.raises(ConfigError, match="no class projects normed embeddings"):
    list(generator_models(params, given, recipe.encoder))
  with pytest.raises(ConfigError, match="this checkpoint has no generator"):
    list(generator_models({"encoder": params["encoder"]}, given, recipe.encoder))


AMOS_FIELDS = {
  "generator.num_layers": 3,
  "generator.mlm_layers": (1, 2, 3),
  "generator.share_embeddings": "tokens",
  "generator.mixture": "adversarial",
}


def test_every_head_is_a_folder_that_loads_and_can_be_imported(
  make_workdir, tmp_path, capsys, in_this_process, export
):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  workdir = make_workdir("modern_electra", AMOS_FIELDS)
  out = tmp_path / "out"
  assert export(workdir, out, "--generator") == 0, capsys.readouterr().err
  names = [f"generator_layer_{depth}" for depth in (1, 2, 3)]
  assert sorted(path.name for path in out.iterdir() if path.is_dir()) == names
  card = (out / "README.md").read_text()
  for depth, name in enumerate(names, start=1):
    config = json.loads((out / name / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["ModernBertForMaskedLM"], depth)
    assert f"`out/{name}`" in card and f"{name}/config.json" in (out / "sha256.txt").read_text()
  model, info = transformers.AutoModelForMaskedLM.from_pretrained(out / names[1], output_loading_info=True)
  assert not info["missing_keys"] and len(model.model.layers) == 2
  back = tmp_path / "back"
  assert __main__.main(["import", f"--from={out / names[1]}", f"--output={back}"]) == 0


def test_heads_without_a_class_are_refused(make_workdir, tmp_path, capsys, in_this_process, export):
  workdir = make_workdir("modern_mlm")
  assert export(workdir, tmp_path / "out", "--generator") == 2
  assert "--generator: this checkpoint has no generator" in capsys.readouterr().err
  assert export(workdir, tmp_path / "out", "--generator", "--to=torch") == 2
  assert "--generator need a transformers class" in capsys.readouterr().err
  assert not list(tmp_path.iterdir())
