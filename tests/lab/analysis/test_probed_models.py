"""The untrained encoder beside a checkpoint has the initial values of its run, heads and all."""

import jax
import numpy as np

from data import vocabulary
from data.annotated import MinimalPair
from lab.analysis.probed_models import open_models
from lab.analysis.probes import MinimalPairs
from pretrain.build import build
from pretrain.checkpoints.saved_model import save_params
from pretrain.reading import prepared
from tests.lab.analysis.test_probe import on_one_device  # noqa: F401 (a fixture)
from tests.pretrain.small_run import small_config, small_run


def test_minimal_pairs_stand_beside_those_of_the_initial_heads(finished, small_records):
  models = open_models([str(finished)], "", batch_size=4)
  untrained = models.encoders["untrained"]
  initial = jax.device_get(small_run(small_config("mlm", small_records)).init_state().params)
  asked = {"encoder": untrained.encoder.params, "heads": untrained.heads}
  jax.tree.map(np.testing.assert_array_equal, asked, initial)
  probe = MinimalPairs([MinimalPair(("ba", "ke"), ("ke", "ba"))], "order")
  assert [[figure.read for figure in probe.measure(encoder)] for encoder in models.encoders.values()] == [
    ["mlm"]
  ] * 2
  assert untrained.likelihoods([("ba", "ke")]) != models.encoders[f"{finished} step 6"].likelihoods(
    [("ba", "ke")]
  )


def test_checkpoints_share_an_untrained_encoder_unless_a_head_began_otherwise(small_records, tmp_path):
  recipes = {
    "mlm": {"objectives.mlm.weight": 1.0},
    "rtd": {"objectives.mlm.weight": 0.0, "objectives.rtd.weight": 1.0},
    "dense": {"objectives.mlm.weight": 0.0, "objectives.rtd.weight": 1.0, "objectives.rtd.head": "dense"},
    "taco": {"objectives.mlm.weight": 0.0, "objectives.taco.weight": 1.0},
  }
  digest = vocabulary.load(small_records / "vocabulary").digest
  for name, fields in recipes.items():
    config = small_config("mlm", small_records, fields)
    shapes = jax.eval_shape(build(config, prepared.token_ids(str(small_records))).init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    save_params(tmp_path / name, params, {"config": config.to_dict(), "vocabulary_digest": digest}, step=1)
  models = open_models([str(tmp_path / name) for name in recipes], "", batch_size=4)
  assert [*models.untrained.values()] == ["untrained", "untrained", "untrained 2", "untrained"]
  heads = {name: set(encoder.heads) for name, encoder in models.encoders.items()}
  assert heads["untrained"] == {"mlm", "rtd"} and heads["untrained 2"] == {"rtd"}
  assert "dense" in models.encoders["untrained 2"].heads["rtd"]
  order = [*models.encoders]
  assert all(order.index(before) < order.index(name) for name, before in models.untrained.items())
