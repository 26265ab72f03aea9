"""The heads of a generator as models of their own."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from data.errors import ConfigError
from pretrain.checkpoints.checkpoint import load_params
from pretrain.corruption import generator
from pretrain.export.export_checkpoint import generator_models
from pretrain.models import encoder as encoder_model
from pretrain.models import heads
from pretrain.ops.positions import take_positions
from pretrain.ops.vocab import vocab_logits
from tests.pretrain.export.test_export import same_params
from tests.pretrain.small_recipe import AMOS, TOKENS, random_params, small_batch, small_recipe
from tests.pretrain.test_segments import MODERN

_ONE = AMOS | MODERN | {"generator.mlm_layers": (), "generator.mixture": "none"}
_SMALL = {"model.embedding_size": 8}  # projected, in the encoder and in the generator
CASES = {
  "inner heads": AMOS | MODERN,
  "inner heads after LN": AMOS | {"model.relative_position": "none"},
  "separate": _ONE | {"generator.separate_layers": (1, 3), "generator.mixture": "uniform"},
  "own embeddings": _ONE | {"generator.share_embeddings": "none"},
  "a difference": _ONE | {"generator.share_embeddings": "gdes"},
  "narrow": _ONE | {"generator.hidden_size": 16, "generator.num_heads": 2},
  "projected": _ONE | {"generator.hidden_size": 16, "generator.projection": "embeddings"},
  "small tables": _ONE | _SMALL | {"generator.projection": "embeddings", "generator.share_embeddings": "all"},
  "their vectors projected": _ONE | _SMALL | {"generator.share_embeddings": "tokens"},
}
NAMES = {
  "inner heads": ["generator_layer_1", "generator_layer_2", "generator_layer_3"],
  "separate": ["generator_0", "generator_1"],
  "narrow": ["generator"],
}


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
  assert [model.config.num_layers for model in found] == list(settings.mlm_layers)
  assert name not in NAMES or [model.name for model in found] == NAMES[name]
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


def test_a_missing_generator_is_refused():
  with pytest.raises(ConfigError, match="no generator"):
    list(generator_models({"encoder": {}}, {}, small_recipe(_ONE).encoder))


def test_every_head_is_a_folder_that_loads_and_can_be_imported(exported, tmp_path, bring):
  transformers = pytest.importorskip("transformers", reason="needs requirements-export.txt")
  fields = {"num_layers": 3, "mlm_layers": (1, 3), "share_embeddings": "tokens", "mixture": "adversarial"}
  fields = tuple((f"generator.{name}", value) for name, value in fields.items())
  workdir, out, _ = exported("modern_electra", "--generator", fields=fields)
  names = ["generator_layer_1", "generator_layer_3"]
  assert sorted(path.name for path in out.iterdir() if path.is_dir()) == names
  card, digests = (out / "README.md").read_text(), (out / "sha256.txt").read_text()
  for depth, name in zip((1, 3), names):
    config = json.loads((out / name / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["ModernBertForMaskedLM"], depth)
    assert f"`out/{name}`" in card and f"{name}/config.json" in digests
  model, info = transformers.AutoModelForMaskedLM.from_pretrained(out / names[1], output_loading_info=True)
  assert not info["missing_keys"] and len(model.model.layers) == 3
  bring(out / names[1], tmp_path / "generator")
  # The encoder itself has the RTD head as a tagger of two labels.
  assert same_params(workdir, bring(out, tmp_path / "back"))
  assert '`pipeline("token-classification", model="out")`' in card
  found = transformers.pipeline("token-classification", model=str(out))("Ba [MASK] ba.")
  assert found and {each["entity"] for each in found} <= {"ORIGINAL", "REPLACED"}


def test_a_disentangled_encoder_and_its_generator_are_models_of_debertas_class_with_tables_of_their_own(
  exported,
):
  gdes = (("generator.share_embeddings", "gdes"),)
  workdir, out, _ = exported("deberta", "--generator", fields=gdes)
  config = json.loads((out / "generator/config.json").read_text())
  assert config["architectures"] == ["DebertaV2ForMaskedLM"]
  both = (load_file(folder / "model.safetensors") for folder in (out, out / "generator"))
  found, base = (state["deberta.embeddings.word_embeddings.weight"] for state in both)
  token = load_params(workdir)[0]["encoder"]["embeddings"]["token"]
  np.testing.assert_array_equal(found, base + token["difference"])
