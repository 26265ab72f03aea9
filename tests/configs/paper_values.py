"""What the papers and their official code say of each recipe, typed from them and not from `configs`.

COCO-LM (NeurIPS 2021): section 4, appendices B and D, table 6. AMOS (ICLR 2022): sections 3 and 4, appendix
B, table 3. TACO (ACL 2022): section 4.1, table 5. ELECTRA (ICLR 2020): table 6. Where a paper is silent, its
official code: microsoft/COCO-LM (fairseq with MC-BERT), microsoft/AMOS, FUZHIYI/TACO (transformers 4.6),
google-research/electra. ModernBERT: its paper and AnswerDotAI/ModernBERT at 8c57a0f.
"""

from typing import Any

# COCO-LM section 4 and table 6, which AMOS's table 3 repeats: everybody's setting but TACO's and Google's.
_BACKBONE = {
  "model.vocab_size": 32_768,
  "model.hidden_size": 768,
  "model.num_layers": 12,
  "model.num_heads": 12,
  "model.mlp_size": 3_072,
  "model.max_length": 512,
  "model.num_segments": 0,
  "model.relative_position": "t5",
  "model.relative_buckets": 32,
  "model.relative_max_distance": 128,
  "model.dropout": 0.1,
  "model.attention_dropout": 0.1,
  "model.init_stddev": 0.02,
  "optimizer.learning_rate": 5e-4,
  "optimizer.schedule": "linear",
  "optimizer.warmup_steps": 10_000,
  "optimizer.end_learning_rate": 0.0,
  "optimizer.adam_b1": 0.9,
  "optimizer.adam_b2": 0.98,
  "optimizer.adam_eps": 1e-6,
  "optimizer.adam_bias_correction": True,
  "optimizer.weight_decay": 0.01,
  "optimizer.decay": "all",
  "optimizer.clip_norm": 2.0,
  "data.length": 512,
  "data.vocabulary_kind": "sentencepiece",
  "data.vocabulary_cased": False,
  "train.batch_size": 2_048,
  "train.total_steps": 125_000,
}
# MC-BERT mask_tokens_dataset2.py: always [MASK], any token, floor(0.15 n + u) of them; COCO-LM appendix D.
_PURE_MASK = {
  "corruption.kind": "generator",
  "corruption.mask_rule": "count",
  "corruption.mask_rate": 0.15,
  "corruption.mask_special": "all",
  "corruption.mask_token_rate": 1.0,
  "corruption.random_token_rate": 0.0,
}
# fairseq's RoBERTa, mask_tokens_dataset.py: 80 / 10 / 10, random words out of those that are not special.
_ROBERTA_MASK = {
  "corruption.kind": "mask",
  "corruption.mask_rule": "count",
  "corruption.mask_rate": 0.15,
  "corruption.mask_special": "all",
  "corruption.mask_token_rate": 0.8,
  "corruption.random_token_rate": 0.1,
  "corruption.random_token_from": "non_special",
}
# transformers data_collator.py: every token but the special ones by itself, random ones out of all.
_BERT_MASK = {
  "corruption.kind": "mask",
  "corruption.mask_rule": "bernoulli",
  "corruption.mask_rate": 0.15,
  "corruption.mask_special": "none",
  "corruption.mask_token_rate": 0.8,
  "corruption.random_token_rate": 0.1,
  "corruption.random_token_from": "all",
}
# google-research/electra pretrain_helpers.py: drawn with replacement, 85 % become [MASK].
_GOOGLE_MASK = {
  "corruption.kind": "generator",
  "corruption.mask_rule": "electra_google",
  "corruption.mask_rate": 0.15,
  "corruption.mask_special": "none",
  "corruption.mask_token_rate": 0.85,
}
_OFF = {f"objectives.{name}.weight": 0.0 for name in ("mlm", "rtd", "clm", "all_token", "scl", "taco", "mae")}

_COCO_LM = {
  **_BACKBONE,
  **_PURE_MASK,
  **_OFF,
  "generator.num_layers": 4,
  "generator.share_embeddings": "all",
  "generator.sampling_dropout": "eval",
  "generator.temperature": 1.0,
  "generator.loss_weight": 1.0,
  "objectives.rtd.weight": 50.0,
  "objectives.rtd.head": "linear",
  "objectives.clm.weight": 1.0,
  "objectives.clm.form": "mixture",
  "objectives.clm.stop_gradient": True,
  "objectives.scl.weight": 1.0,
  "objectives.scl.crop_fraction": 0.9,
  "objectives.scl.temperature": 1.0,
  "objectives.scl.head": "cls",
}
_ELECTRA = {  # MC-BERT; the generator's size from COCO-LM's table 3
  **_COCO_LM,
  "generator.num_layers": 12,
  "generator.hidden_size": 256,
  "generator.mlp_size": 1_024,
  "generator.num_heads": 4,
  "generator.share_embeddings": "tokens",
  "generator.projection": "table",
  "generator.sampling_dropout": "train",
  "objectives.clm.weight": 0.0,
  "objectives.scl.weight": 0.0,
}
_ALL_TOKEN = {
  **_COCO_LM,
  "objectives.all_token.weight": 1.0,
  "objectives.rtd.weight": 0.0,
  "objectives.clm.weight": 0.0,
  "objectives.scl.weight": 0.0,
}
_ROBERTA = {**_BACKBONE, **_ROBERTA_MASK, **_OFF, "objectives.mlm.weight": 1.0}
_AMOS = {
  **_BACKBONE,
  **_PURE_MASK,
  **_OFF,
  "generator.num_layers": 8,
  "generator.mlm_layers": (4, 6, 8),
  "generator.share_embeddings": "tokens",
  "generator.sampling_dropout": "zero",
  "generator.detach_blocks": True,
  "generator.mixture": "adversarial",
  "generator.gumbel_temperature": 0.3,
  "generator.reversal_multiplier": -1.0,
  "generator.adv_mlm_multiplier": 0.0,
  "generator.loss_weight": 1.0,
  "objectives.rtd.weight": 50.0,
  "objectives.rtd.head": "linear",
}
_BERT = {  # TACO table 5 (base)
  **_BACKBONE,
  **_BERT_MASK,
  **_OFF,
  "model.vocab_size": 30_522,
  "model.num_segments": 2,
  "model.relative_position": "none",
  "model.layer_norm_eps": 1e-12,
  "optimizer.learning_rate": 1e-4,
  "optimizer.adam_b2": 0.999,
  "optimizer.adam_eps": 1e-8,
  "optimizer.decay": "no_bias_norm",
  "optimizer.clip_norm": 1.0,
  "data.length": 256,
  "data.vocabulary_kind": "wordpiece",
  "data.packing": "concat",
  "train.batch_size": 1_280,
  "train.total_steps": 500_000,
  "objectives.mlm.weight": 1.0,
  "objectives.mlm.positions": "masked",
}
_TACO = {
  **_BERT,
  "objectives.taco.weight": 1.0,
  "objectives.taco.anchors": "all",
  "objectives.taco.window": 5,
  "objectives.taco.num_negatives": 50,
  "objectives.taco.temperature": 0.07,
}
_GOOGLE = {  # ELECTRA table 6 (base)
  **_BACKBONE,
  **_GOOGLE_MASK,
  **_OFF,
  "model.vocab_size": 30_522,
  "model.num_segments": 2,
  "model.relative_position": "none",
  "model.layer_norm_eps": 1e-12,
  "generator.num_layers": 12,
  "generator.hidden_size": 256,
  "generator.mlp_size": 1_024,
  "generator.num_heads": 4,
  "generator.share_embeddings": "all",
  "generator.projection": "embeddings",
  "generator.sampling_dropout": "train",
  "generator.disallow_correct": False,
  "objectives.rtd.weight": 50.0,
  "objectives.rtd.head": "dense",
  "optimizer.learning_rate": 2e-4,
  "optimizer.schedule": "electra_google",
  "optimizer.adam_b2": 0.999,
  "optimizer.adam_bias_correction": False,
  "optimizer.decay": "no_bias_norm",
  "optimizer.clip_norm": 1.0,
  "data.vocabulary_kind": "wordpiece",
  "train.batch_size": 256,
  "train.total_steps": 766_000,
}

# The longer runs on 160 GB: COCO-LM table 6 and AMOS table 3, section 4 for the vocabulary.
_PLUS_PLUS = {
  "model.vocab_size": 64_000,
  "model.relative_buckets": 64,
  "model.relative_max_distance": 128,
  "optimizer.learning_rate": 2e-4,
  "data.vocabulary_cased": True,
  "train.total_steps": 1_950_000,
}
_LARGE = {
  "model.hidden_size": 1_024,
  "model.num_layers": 24,
  "model.num_heads": 16,
  "model.mlp_size": 4_096,
  "model.relative_buckets": 128,
  "model.relative_max_distance": 256,
  "generator.num_layers": 6,
  "optimizer.learning_rate": 1e-4,
}
# Sizes of the official cocolm_small, batch and run of ELECTRA's table 6 (small).
_SMALL = {
  "model.hidden_size": 256,
  "model.num_layers": 12,
  "model.num_heads": 4,
  "model.mlp_size": 1_024,
  "optimizer.learning_rate": 5e-4,
  "data.length": 128,
  "train.batch_size": 128,
  "train.total_steps": 1_000_000,
}
_TACO_SMALL = {
  "model.hidden_size": 512,
  "model.num_layers": 4,
  "model.num_heads": 8,
  "model.mlp_size": 2_048,
  "optimizer.warmup_steps": 2_500,
  "train.total_steps": 250_000,
}
_GENERATOR_64 = {
  "generator.num_layers": 12,
  "generator.hidden_size": 64,
  "generator.mlp_size": 256,
  "generator.num_heads": 1,
}

# ModernBERT (Warner et al. 2024) and AnswerDotAI/ModernBERT's yamls of base, phase 1; src/sequence_packer.py.
_MODERNBERT = {
  **_OFF,
  "objectives.mlm.weight": 1.0,
  "model.vocab_size": 50_368,
  "model.hidden_size": 768,
  "model.num_layers": 22,
  "model.num_heads": 12,
  "model.mlp_size": 1_152,
  "model.mlp": "gated",
  "model.activation": "gelu",
  "model.norm_placement": "pre",
  "model.norm_bias": False,
  "model.attention_bias": False,
  "model.mlp_bias": False,
  "model.position": "rope",
  "model.relative_position": "none",
  "model.rope_theta": 10_000.0,
  "model.rope_theta_local": 10_000.0,
  "model.window": 128,
  "model.global_every": 3,
  "model.dropout": 0.1,
  "model.dropout_at": "attention",
  "model.attention_dropout": 0.0,
  "model.init": "megatron_cut",
  "model.init_stddev": 0.02,
  "corruption.kind": "mask",
  "corruption.mask_rule": "bernoulli",
  "corruption.mask_rate": 0.3,
  "corruption.mask_special": "all",
  "corruption.mask_token_rate": 0.8,
  "corruption.random_token_rate": 0.1,
  "corruption.random_token_from": "all",
  "corruption.eval_mask_rate": 0.15,
  "optimizer.learning_rate": 8e-4,
  "optimizer.schedule": "wsd",
  "optimizer.decay_steps": 0,
  "optimizer.update_clipping": "stable_adamw",
  "optimizer.adam_b1": 0.9,
  "optimizer.adam_b2": 0.98,
  "optimizer.adam_eps": 1e-6,
  "optimizer.adam_eps_placement": "corrected",
  "optimizer.adam_bias_correction": True,
  "optimizer.weight_decay": 1e-5,
  "optimizer.decay": "no_bias_norm",
  "optimizer.decay_scale": "rate_over_peak",
  "optimizer.clip_norm": 0.0,
  "data.length": 1_024,
  "train.batch_size": 4_608,
  "train.batch_size_start": 768,
  "train.microbatches": 6,
  "seed": 17,
}

_METRO = {  # gonglinyuan/metro_t0 for the method, t5_metro.py and its yamls; the setting as COCO-LM's
  **_COCO_LM,
  "generator.num_layers": 4,
  "generator.share_embeddings": "tokens",
  "generator.sampling_dropout": "zero",
  "objectives.clm.copy": False,
  "objectives.scl.weight": 0.0,
}
_MAE = {  # yumeng5/MAE-LM, run_pretrain.sh; the base setting as COCO-LM's
  **_BACKBONE,
  **_PURE_MASK,
  **_OFF,
  "corruption.kind": "mask",
  "objectives.mae.weight": 1.0,
  "objectives.mae.decoder_layers": 4,
  "objectives.mae.decoder_positions": "own",
  "objectives.mae.decoder_relative_position": False,
  "objectives.mae.decoder_dropout": "zero",
}
# DeBERTaV3 and microsoft/DeBERTa at 4d7fe0b: rtd_base.json, rtd_task.py, mlm_task.py; a summary's tables.
_DEBERTA_V3 = {
  **_BACKBONE,
  **_PURE_MASK,
  **_OFF,
  "corruption.mask_special": "none",
  "generator.num_layers": 6,
  "generator.hidden_size": 0,
  "generator.share_embeddings": "gdes",
  "generator.sampling_dropout": "train",
  "generator.temperature": 1.0,
  "generator.temperature_start": 0.0,
  "generator.disallow_correct": False,
  "generator.loss_weight": 1.0,
  "objectives.rtd.weight": 50.0,
  "model.vocab_size": 128_000,
  "model.layer_norm_eps": 1e-7,
  "optimizer.learning_rate": 6e-4,
  "optimizer.decay": "no_bias_norm",
  "optimizer.clip_norm": 1.0,
  "data.vocabulary_cased": True,
  "train.batch_size": 8_192,
  "train.total_steps": 500_000,
}
# Fast-ELECTRA: abstract and reviews; the temperature's values from memory.
_FAST_ELECTRA = {
  **_COCO_LM,
  "generator.frozen": True,
  "generator.share_embeddings": "none",
  "generator.sampling_dropout": "zero",
  "generator.temperature_start": 2.0,
  "generator.temperature_decay": 0.1,
  "objectives.clm.weight": 0.0,
  "objectives.scl.weight": 0.0,
}

# {recipe: {field: value}}
VALUES: dict[str, dict[str, Any]] = {
  "all_token_base": _ALL_TOKEN,
  "all_token_small": {**_ALL_TOKEN, **_SMALL, "generator.num_layers": 2},
  "amos_base": _AMOS,
  "amos_base_plus_plus": {**_AMOS, **_PLUS_PLUS},
  "bert_base": _BERT,
  "bert_small": {**_BERT, **_TACO_SMALL},
  "coco_lm_base": _COCO_LM,
  "coco_lm_base_plus_plus": {**_COCO_LM, **_PLUS_PLUS},
  "coco_lm_large_plus_plus": {**_COCO_LM, **_PLUS_PLUS, **_LARGE},
  "coco_lm_small": {**_COCO_LM, **_SMALL, "generator.num_layers": 2},
  "deberta_v3_rtd_base": _DEBERTA_V3,
  "electra_base": _ELECTRA,
  "electra_gdes_base": {**_ELECTRA, "generator.share_embeddings": "gdes"},
  "electra_small": {**_ELECTRA, **_SMALL, **_GENERATOR_64},
  "electra_google_base": _GOOGLE,
  "electra_google_small": {**_GOOGLE, **_SMALL, **_GENERATOR_64},
  "mae_lm_base": _MAE,
  "metro_lm_base": _METRO,
  "fast_electra_base": _FAST_ELECTRA,
  "modernbert_base": _MODERNBERT,
  "roberta_base": _ROBERTA,
  "roberta_small": {**_ROBERTA, **_SMALL},
  "taco_base": _TACO,
  "taco_small": {**_TACO, **_TACO_SMALL},
}
# Sizes and combinations that no paper trained.
NO_PAPER = ("amos_small", "amos_coco_taco_base")
