"""Run: python -m pytest tests/pretrain/plan/test_flops.py"""

import pytest

from configs import backbones, base
from pretrain.mesh import chips
from pretrain.plan import flops

COCO_LM = {
  "corruption.kind": "generator",
  "generator.num_layers": 4,
  "objectives.rtd.weight": 50.0,
  "objectives.clm.weight": 1.0,
  "objectives.scl.weight": 1.0,
}
AMOS = {
  "corruption.kind": "generator",
  "generator.num_layers": 8,
  "generator.mlm_layers": (4, 6, 8),
  "generator.mixture": "adversarial",
  "generator.sampling_dropout": "zero",
  "objectives.rtd.weight": 50.0,
}
MLM = {"objectives.mlm.weight": 1.0}
MAE = {"objectives.mae.weight": 1.0}
RTD = {"corruption.kind": "generator", "objectives.rtd.weight": 50.0}
ONE_PASS = {"generator.sampling_dropout": "train"}
LARGE = {"model.hidden_size": 1024, "model.num_layers": 24, "model.num_heads": 16, "model.mlp_size": 4096}
ELECTRA = {"generator.num_layers": 12, "generator.hidden_size": 256, "generator.mlp_size": 1024}
TACO = {"data.length": 256, "model.vocab_size": 30_522, "objectives.taco.weight": 1.0}
BIG_VOCABULARY = {"model.vocab_size": 64_000}


def config(*changes: dict):
  made = base.get_config()
  for change in changes:
    made.update_from_flattened_dict(change)
  return made


# MFLOP per token, worked out apart from this program from the formulas in the papers' sizes.
TABLE = [
  ("MLM base", 589, (MLM,)),
  ("RTD only base", 778, (RTD, ONE_PASS)),
  ("ELECTRA base", 666, (RTD, ELECTRA, ONE_PASS)),
  ("COCO-LM base, one pass", 1304, (COCO_LM, ONE_PASS)),
  ("COCO-LM base, second pass for sampling", 1375, (COCO_LM,)),
  ("COCO-LM base++", 1348, (COCO_LM, ONE_PASS, BIG_VOCABULARY)),
  ("COCO-LM large++", 4323, (COCO_LM, ONE_PASS, BIG_VOCABULARY, LARGE, {"generator.num_layers": 6})),
  ("AMOS base", 1036, (AMOS,)),
  ("AMOS base++", 1123, (AMOS, BIG_VOCABULARY)),
  ("TACO base", 560, (MLM, TACO)),
  ("MLM large", 1994, (MLM, LARGE)),
  ("MLM base, length 128", 548, (MLM, {"data.length": 128})),
  ("COCO-LM base, length 128", 1215, (COCO_LM, ONE_PASS, {"data.length": 128})),
]


@pytest.mark.parametrize(("expected", "changes"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_training_cost_is_the_tables(expected, changes):
  # The table is rounded to 1 MFLOP and leaves out the RTD head's 2H = 0.005 MFLOP (0.006 for large).
  assert flops.training_flops_per_token(config(*changes)) / 1e6 == pytest.approx(expected, abs=0.55)


@pytest.mark.parametrize(
  ("backbone", "by_length"),
  [
    ("modern", {512: 786, 1_024: 824, 8_192: 1_353}),
    ("modern_large", {512: 2_243, 1_024: 2_307, 8_192: 3_189}),
    ("ettin_17m", {512: 53, 1_024: 58, 8_192: 124}),
  ],
)
def test_local_layers_cost_the_keys_of_their_window(backbone, by_length):
  # Worked out apart from this program, at ModernBERT's 30 % of masked tokens and its vocabulary.
  fields = MLM | {"corruption.mask_rate": 0.3, "model.vocab_size": 50_368}
  for length, expected in by_length.items():
    made = backbones.apply(config(fields, {"data.length": length}), backbone)
    assert flops.training_flops_per_token(made) / 1e6 == pytest.approx(expected, abs=0.55)


def test_parts_are_those_of_the_network():
  parts = flops.forward_parts(config(COCO_LM))
  assert set(parts) == {
    "encoder",
    "generator",
    "generator heads",
    "sampling pass",
    "rtd head",
    "clm head",
    "scl pass",
  }
  assert parts["sampling pass"] == pytest.approx((parts["generator"] + parts["generator heads"]) / 3)


def difference(changes: dict, *before: dict) -> float:
  with_change = flops.training_flops_per_token(config(*before, changes))
  return with_change - flops.training_flops_per_token(config(*before))


def test_frozen_generator_costs_its_forward_pass_only():
  parts = flops.forward_parts(config(COCO_LM, ONE_PASS))
  saved = difference({"generator.frozen": True}, COCO_LM, ONE_PASS)
  assert saved == pytest.approx(-2 * (parts["generator"] + parts["generator heads"]))
  # What is frozen has no dropout to switch off for sampling.
  frozen = {"generator.frozen": True}
  assert difference(ONE_PASS, COCO_LM, frozen) == 0


def test_without_dropout_there_is_no_second_pass():
  still = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
  assert difference(ONE_PASS, COCO_LM, still) == 0
  assert difference(ONE_PASS, COCO_LM) < 0


def test_separate_generators_add_their_depths_and_heads():
  separate = flops.forward_parts(
    config(AMOS, {"generator.separate_layers": (4, 6, 8), "generator.mlm_layers": ()})
  )
  shared = flops.forward_parts(config(AMOS))
  assert separate["generator"] == pytest.approx(shared["generator"] * 18 / 8)
  assert separate["generator heads"] == pytest.approx(shared["generator heads"])


def test_only_the_adversarial_mixture_pays_for_soft_embeddings():
  assert difference({"generator.mixture": "uniform"}, AMOS) == pytest.approx(-3 * 77 / 512 * 2 * 768 * 32_768)


def test_objectives_over_all_positions_cost_whole_softmaxes():
  whole = 2 * 768 * 32_768
  assert difference({"objectives.all_token.weight": 1.0}, RTD) == pytest.approx(3 * whole)
  assert difference({"objectives.mlm.positions": "all"}, MLM) == pytest.approx(
    3 * (1 - 77 / 512) * (whole + 2 * 768**2)
  )


def test_google_electra_pays_for_projections_and_a_dense_head():
  assert difference({"objectives.rtd.head": "dense"}, RTD, ELECTRA) == pytest.approx(3 * 2 * 768**2)
  # Both have a softmax of the encoder's width; MC-BERT's goes to it by a second product.
  heads = flops.forward_parts(config(RTD, ELECTRA, ONE_PASS))["generator heads"]
  assert heads == pytest.approx(77 / 512 * 2 * (256 * 256 + 256 * 768 + 768 * 32_768))
  fewer = -3 * 77 / 512 * 2 * 256 * 256
  assert difference({"generator.projection": "embeddings"}, RTD, ELECTRA, ONE_PASS) == pytest.approx(fewer)


def test_a_masked_autoencoder_pays_for_its_decoder_on_every_token_and_for_a_head_at_masked_ones():
  parts, of_mlm = (flops.forward_parts(config(fields)) for fields in (MAE, MLM))
  assert set(parts) == {"encoder", "mae decoder", "mae head"}
  assert parts["encoder"] == of_mlm["encoder"] and parts["mae head"] == of_mlm["mlm head"]
  assert parts["mae decoder"] == pytest.approx(parts["encoder"] * 4 / 12)
  half = flops.forward_parts(config(MAE, {"objectives.mae.decoder_layers": 2}))
  assert half["mae decoder"] == pytest.approx(parts["encoder"] / 6)


def test_contrast_costs_one_product_for_each_candidate():
  taco = {"objectives.taco.weight": 1.0, "objectives.taco.num_negatives": 50}
  assert difference(taco, MLM) == pytest.approx(3 * 2 * 768 * 51, rel=1e-6)


def test_crop_may_be_a_number_of_tokens():
  as_fraction = difference({"objectives.scl.crop_fraction": 0.5}, COCO_LM)
  assert difference({"objectives.scl.crop_fraction": 256.0}, COCO_LM) == pytest.approx(as_fraction)
  assert difference({"objectives.scl.crop_fraction": 9999.0}, COCO_LM) > 0


def test_crops_of_segments_are_computed_in_whole_rows():
  fields = {"objectives.scl.max_segments": 4, "data.packing": "segments"}
  parts = flops.forward_parts(config(COCO_LM, fields))
  assert parts["scl pass"] == parts["encoder"]


def test_number_of_masked_positions_is_not_raised_by_rounding():
  # 0.07 * 100 is 7.000000000000001 in floating point.
  change = {"corruption.mask_rate": 0.07, "data.length": 100}
  assert flops.forward_parts(config(MLM, change))["mlm head"] == pytest.approx(
    0.07 * 2 * 768 * (768 + 32_768)
  )


def test_the_dict_stored_with_a_checkpoint_counts_alike():
  assert flops.training_flops_per_token(config(AMOS).to_dict()) == flops.training_flops_per_token(
    config(AMOS)
  )


@pytest.mark.parametrize(
  ("kind", "tera"),
  [
    ("NVIDIA H200", 989),
    ("NVIDIA H100 80GB HBM3", 989),
    ("NVIDIA H100 PCIe", 756),
    ("NVIDIA A100-SXM4-40GB", 312),
    ("Tesla V100-SXM2-16GB", 125),
    ("TPU v4", 275),
    ("TPU v5 lite", 197),
    ("TPU v5p", 459),
    ("TPU v5", 459),
    ("TPU v6 lite", 918),
  ],
)
def test_known_devices_have_a_peak(kind, tera):
  assert chips.peak_flops(kind) == tera * 1e12


def test_a_cpu_has_none():
  assert chips.peak_flops("cpu") is None


def test_changing_rates_cost_their_largest():
  stages = MLM | {"corruption.mask_rates": ((0.0, 0.3), (0.8, 0.15))}
  largest = MLM | {"corruption.mask_rate": 0.3}
  assert flops.training_flops_per_token(config(stages)) == flops.training_flops_per_token(config(largest))
