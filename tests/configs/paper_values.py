"""What the papers and their official code say of each recipe, typed from them and not from `configs`.

COCO-LM (NeurIPS 2021): section 4, appendices B and D, table 6. AMOS (ICLR 2022): sections 3 and 4, appendix
B, table 3. TACO (ACL 2022): section 4.1, table 5. ELECTRA (ICLR 2020): table 6. Where a paper is silent, its
official code: microsoft/COCO-LM (fairseq with MC-BERT), microsoft/AMOS, FUZHIYI/TACO (transformers 4.6),
google-research/electra. ModernBERT: its paper and AnswerDotAI/ModernBERT at 8c57a0f.
"""

import ast
from typing import Any


def _of(text: str) -> dict[str, Any]:
  """Returns {'model.num_layers': 12, ...} of lines 'model: num_layers=12 relative_position=t5'."""
  values: dict[str, Any] = {}
  for line in text.strip().splitlines():
    group, _, pairs = line.strip().partition(":")
    for name, _, value in (pair.partition("=") for pair in pairs.split()):
      is_text = value.isidentifier() and value not in ("True", "False")
      values[f"{group}.{name}".lstrip(".")] = value if is_text else ast.literal_eval(value)
  return values


# COCO-LM section 4 and table 6, which AMOS's table 3 repeats: everybody's setting but TACO's and Google's.
_BACKBONE = _of("""
  model: vocab_size=32_768 hidden_size=768 num_layers=12 num_heads=12 mlp_size=3_072 max_length=512
  model: num_segments=0 relative_position=t5 relative_buckets=32 relative_max_distance=128 dropout=0.1
  model: attention_dropout=0.1 init_stddev=0.02
  optimizer: learning_rate=5e-4 schedule=linear warmup_steps=10_000 end_learning_rate=0.0 adam_b1=0.9
  optimizer: adam_b2=0.98 adam_eps=1e-6 adam_bias_correction=True weight_decay=0.01 decay=all clip_norm=2.0
  data: length=512 vocabulary_kind=sentencepiece vocabulary_cased=False
  train: batch_size=2_048 total_steps=125_000
""")
# MC-BERT mask_tokens_dataset2.py: always [MASK], any token, floor(0.15 n + u) of them; COCO-LM appendix D.
_PURE_MASK = _of("""
  corruption: kind=generator mask_rule=count mask_rate=0.15 mask_special=all mask_token_rate=1.0
  corruption: random_token_rate=0.0
""")
# fairseq's RoBERTa, mask_tokens_dataset.py: 80 / 10 / 10, random words out of those that are not special.
_ROBERTA_MASK = _of("""
  corruption: kind=mask mask_rule=count mask_rate=0.15 mask_special=all mask_token_rate=0.8
  corruption: random_token_rate=0.1 random_token_from=non_special
""")
# transformers data_collator.py: every token but the special ones by itself, random ones out of all.
_BERT_MASK = _of("""
  corruption: kind=mask mask_rule=bernoulli mask_rate=0.15 mask_special=none mask_token_rate=0.8
  corruption: random_token_rate=0.1 random_token_from=all
""")
# google-research/electra pretrain_helpers.py: drawn with replacement, 85 % become [MASK].
_GOOGLE_MASK = _of("""
  corruption: kind=generator mask_rule=electra_google mask_rate=0.15 mask_special=none mask_token_rate=0.85
""")
_OFF = {f"objectives.{name}.weight": 0.0 for name in ("mlm", "rtd", "clm", "all_token", "scl", "taco", "mae")}

_COCO_LM = _BACKBONE | _PURE_MASK | _OFF
_COCO_LM |= _of("""
  generator: num_layers=4 share_embeddings=all sampling_dropout=eval temperature=1.0 loss_weight=1.0
  objectives.rtd: weight=50.0 head=linear
  objectives.clm: weight=1.0 form=mixture stop_gradient=True
  objectives.scl: weight=1.0 crop_fraction=0.9 temperature=1.0 head=cls
""")
# MC-BERT; the generator's size from COCO-LM's table 3
_ELECTRA = _COCO_LM | _of("""
  generator: num_layers=12 hidden_size=256 mlp_size=1_024 num_heads=4 share_embeddings=tokens
  generator: projection=table sampling_dropout=train
  objectives.clm: weight=0.0
  objectives.scl: weight=0.0
""")
_ALL_TOKEN = _COCO_LM | _of("""
  objectives.all_token: weight=1.0
  objectives.rtd: weight=0.0
  objectives.clm: weight=0.0
  objectives.scl: weight=0.0
""")
_ROBERTA = _BACKBONE | _ROBERTA_MASK | _OFF
_ROBERTA |= _of("""
  objectives.mlm: weight=1.0
""")
_AMOS = _BACKBONE | _PURE_MASK | _OFF
_AMOS |= _of("""
  generator: num_layers=8 mlm_layers=(4,6,8) share_embeddings=tokens sampling_dropout=zero
  generator: detach_blocks=True mixture=adversarial gumbel_temperature=0.3 reversal_multiplier=-1.0
  generator: adv_mlm_multiplier=0.0 loss_weight=1.0
  objectives.rtd: weight=50.0 head=linear
""")
# TACO table 5 (base)
_BERT = _BACKBONE | _BERT_MASK | _OFF
_BERT |= _of("""
  model: vocab_size=30_522 num_segments=2 relative_position=none layer_norm_eps=1e-12
  optimizer: learning_rate=1e-4 adam_b2=0.999 adam_eps=1e-8 decay=no_bias_norm clip_norm=1.0
  data: length=256 vocabulary_kind=wordpiece packing=concat
  train: batch_size=1_280 total_steps=500_000
  objectives.mlm: weight=1.0 positions=masked
""")
_TACO = _BERT | _of("""
  objectives.taco: weight=1.0 anchors=all window=5 num_negatives=50 temperature=0.07
""")
# ELECTRA table 6 (base)
_GOOGLE = _BACKBONE | _GOOGLE_MASK | _OFF
_GOOGLE |= _of("""
  model: vocab_size=30_522 num_segments=2 relative_position=none layer_norm_eps=1e-12
  generator: num_layers=12 hidden_size=256 mlp_size=1_024 num_heads=4 share_embeddings=all
  generator: projection=embeddings sampling_dropout=train disallow_correct=False
  objectives.rtd: weight=50.0 head=dense
  optimizer: learning_rate=2e-4 schedule=electra_google adam_b2=0.999 adam_bias_correction=False
  optimizer: decay=no_bias_norm clip_norm=1.0
  data: vocabulary_kind=wordpiece
  train: batch_size=256 total_steps=766_000
""")

# The longer runs on 160 GB: COCO-LM table 6 and AMOS table 3, section 4 for the vocabulary.
_PLUS_PLUS = _of("""
  model: vocab_size=64_000 relative_buckets=64 relative_max_distance=128
  optimizer: learning_rate=2e-4
  data: vocabulary_cased=True
  train: total_steps=1_950_000
""")
_LARGE = _of("""
  model: hidden_size=1_024 num_layers=24 num_heads=16 mlp_size=4_096 relative_buckets=128
  model: relative_max_distance=256
  generator: num_layers=6
  optimizer: learning_rate=1e-4
""")
# Sizes of the official cocolm_small, batch and run of ELECTRA's table 6 (small).
_SMALL = _of("""
  model: hidden_size=256 num_layers=12 num_heads=4 mlp_size=1_024
  optimizer: learning_rate=5e-4
  data: length=128
  train: batch_size=128 total_steps=1_000_000
""")
_TACO_SMALL = _of("""
  model: hidden_size=512 num_layers=4 num_heads=8 mlp_size=2_048
  optimizer: warmup_steps=2_500
  train: total_steps=250_000
""")
_GENERATOR_64 = _of("""
  generator: num_layers=12 hidden_size=64 mlp_size=256 num_heads=1
""")

# ModernBERT (Warner et al. 2024) and AnswerDotAI/ModernBERT's yamls of base, phase 1; src/sequence_packer.py.
_MODERNBERT = _OFF | _of("""
  objectives.mlm: weight=1.0
  model: vocab_size=50_368 hidden_size=768 num_layers=22 num_heads=12 mlp_size=1_152 mlp=gated
  model: activation=gelu norm_placement=pre norm_bias=False attention_bias=False mlp_bias=False
  model: position=rope relative_position=none rope_theta=10_000.0 rope_theta_local=10_000.0 window=128
  model: global_every=3 dropout=0.1 dropout_at=attention attention_dropout=0.0 init=megatron_cut
  model: init_stddev=0.02
  corruption: kind=mask mask_rule=bernoulli mask_rate=0.3 mask_special=all mask_token_rate=0.8
  corruption: random_token_rate=0.1 random_token_from=all eval_mask_rate=0.15
  optimizer: learning_rate=8e-4 schedule=wsd decay_steps=0 update_clipping=stable_adamw adam_b1=0.9
  optimizer: adam_b2=0.98 adam_eps=1e-6 adam_eps_placement=corrected adam_bias_correction=True
  optimizer: weight_decay=1e-5 decay=no_bias_norm decay_scale=rate_over_peak clip_norm=0.0
  data: length=1_024
  train: batch_size=4_608 batch_size_start=768 microbatches=6
  : seed=17
""")

# gonglinyuan/metro_t0 for the method, t5_metro.py and its yamls; the setting as COCO-LM's
_METRO = _COCO_LM | _of("""
  generator: num_layers=4 share_embeddings=tokens sampling_dropout=zero
  objectives.clm: copy=False
  objectives.scl: weight=0.0
  optimizer: learning_rate=0.0004 clip_norm=0.0
  data: packing=complete_doc
""")
# yumeng5/MAE-LM, run_pretrain.sh; the base setting as COCO-LM's
_MAE = _BACKBONE | _PURE_MASK | _OFF
_MAE |= _of("""
  corruption: kind=mask
  objectives.mae: weight=1.0 decoder_layers=4 decoder_positions=own decoder_relative_position=False
  objectives.mae: decoder_dropout=zero
""")
# DeBERTaV3 and microsoft/DeBERTa at 4d7fe0b: rtd_base.json, rtd_task.py, mlm_task.py; a summary's tables.
_DEBERTA_V3 = _BACKBONE | _PURE_MASK | _OFF
_DEBERTA_V3 |= _of("""
  corruption: mask_rule=deberta mask_special=none
  generator: num_layers=6 hidden_size=0 share_embeddings=gdes sampling_dropout=train temperature=1.0
  generator: temperature_start=0.0 disallow_correct=False loss_weight=1.0
  objectives.rtd: weight=50.0
  objectives.rtd: head=context
  model: vocab_size=128_100 layer_norm_eps=1e-7 position=none relative_position=disentangled
  model: relative_buckets=512 relative_max_distance=512
  optimizer: learning_rate=6e-4 decay=no_bias_norm clip_norm=1.0
  data: vocabulary_cased=True
  train: batch_size=8_192 total_steps=500_000
""")
# Fast-ELECTRA: abstract and reviews; the temperature's values from memory.
_FAST_ELECTRA = _COCO_LM | _of("""
  generator: frozen=True share_embeddings=none sampling_dropout=zero temperature_start=2.0
  generator: temperature_decay=0.1
  objectives.clm: weight=0.0
  objectives.scl: weight=0.0
""")

# {recipe: {field: value}}
VALUES: dict[str, dict[str, Any]] = {
  "all_token_base": _ALL_TOKEN,
  "all_token_base:small": {**_ALL_TOKEN, **_SMALL, "generator.num_layers": 2},
  "amos_base": _AMOS,
  "amos_base_plus_plus": {**_AMOS, **_PLUS_PLUS},
  "bert_base": _BERT,
  "bert_base:small": {**_BERT, **_TACO_SMALL},
  "coco_lm_base": _COCO_LM,
  "coco_lm_base_plus_plus": {**_COCO_LM, **_PLUS_PLUS},
  "coco_lm_large_plus_plus": {**_COCO_LM, **_PLUS_PLUS, **_LARGE},
  "coco_lm_base:small": {**_COCO_LM, **_SMALL, "generator.num_layers": 2},
  # allenai/dont-stop-pretraining, ADAPTIVE_PRETRAINING.md at 2571ba9: 16 rows x 128 and x 16.
  "continue": _of("optimizer: learning_rate=5e-4\ntrain: batch_size=2_048 total_steps=12_500"),
  "continue:task": _of("optimizer: learning_rate=1e-4\ntrain: batch_size=256"),
  "deberta_v3_rtd_base": _DEBERTA_V3,
  "electra_base": _ELECTRA,
  "electra_gdes_base": {**_ELECTRA, "generator.share_embeddings": "gdes"},
  "electra_base:small": {**_ELECTRA, **_SMALL, **_GENERATOR_64},
  "electra_google_base": _GOOGLE,
  "electra_google_base:small": {**_GOOGLE, **_SMALL, **_GENERATOR_64},
  "mae_lm_base": _MAE,
  "metro_lm_base": _METRO,
  "fast_electra_base": _FAST_ELECTRA,
  "modernbert_base": _MODERNBERT,
  "roberta_base": _ROBERTA,
  "roberta_base:small": {**_ROBERTA, **_SMALL},
  "taco_base": _TACO,
  "taco_base:small": {**_TACO, **_TACO_SMALL},
}
# Sizes and combinations that no paper trained.
NO_PAPER = ("amos_base:small", "amos_coco_taco_base")
# No number of these is from a paper: `configs/sizes.py`.
TINY = _of("""
  model: vocab_size=4_096 hidden_size=128 num_layers=2 num_heads=2 max_length=64 init_stddev=0.05
  model: dropout=0.0 attention_dropout=0.0
  objectives.scl: group_size=32
  objectives.taco: group_size=32
  data: source=installed_docs length=64
  optimizer: learning_rate=2e-3 warmup_steps=200 adam_eps=1e-8
  train: batch_size=32 total_steps=4_000 log_every=50 eval_every=500 eval_batches=8 checkpoint_every=1_000
""")
DEMO = TINY | _of("""
  optimizer: warmup_steps=100
  train: total_steps=800 eval_every=400 checkpoint_every=400
""")
# {backbone: layers, width, heads, width of the MLP}: the papers' tables.
BACKBONES = {
  "modern": (22, 768, 12, 1_152),
  "modern_large": (28, 1_024, 16, 2_624),
  "ettin_17m": (7, 256, 4, 384),
  "ettin_32m": (10, 384, 6, 576),
  "ettin_68m": (19, 512, 8, 768),
}
# DeBERTa-v3's model cards: sizes, and millions of parameters of the layers and of a table of 128,100 rows.
DEBERTA = {
  "deberta": ((12, 768, 12, 3_072), 86, 98),
  "deberta_large": ((24, 1_024, 16, 4_096), 304, 131),
  "deberta_small": ((6, 768, 12, 3_072), 44, 98),
  "deberta_xsmall": ((12, 384, 6, 1_536), 22, 48),
  "mdeberta": ((12, 768, 12, 3_072), 86, 190),
}
