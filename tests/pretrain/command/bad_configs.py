"""Configs that must be refused, and their neighbours that must not be. Data of test_validate.

'RECIPE: FIELD=VALUE ... -> WORD', continued in lines that are further in: the tiny recipe with the fields,
as a user gives them, has one problem, which names one of them and contains the word: another field's name,
a value, or the flag that the user pastes. 'devices' are of the machine.
"""

from collections.abc import Iterator

BAD = """
  roberta: seed=-1 -> in [0, 4.29497e+09]
  roberta: model.num_layers=0 -> at least 1
  roberta: model.layer_norm_eps=0.0 -> above 0
  roberta: model.dropout=1.0 -> in [0, 1)
  roberta: corruption.mask_rate=0.0 -> in (0, 1)
  roberta: data.fraction=0.0 -> in (0, 1]
  roberta: model.num_heads=3 -> model.hidden_size
  roberta: optimizer.decay_shape=one_minus_sqrt -> --config.optimizer.schedule=wsd
  roberta: model.scan_unroll=3 -> model.num_layers
  roberta: model.relative_buckets=33 -> even
  roberta: model.relative_max_distance=9 -> above 9
  roberta: data.length=65 -> --config.model.max_length=65
  roberta: train.spike_roll_back=True -> --config.train.spike_zscore=8
  roberta: train.trackers=wandbb -> mean 'wandb'
  roberta: train.probe_every=100 -> train.probe_data
  roberta: optimizer.warmup_steps=4001 -> --config.optimizer.warmup_steps=400
  roberta: optimizer.end_learning_rate=0.0021 -> optimizer.learning_rate
  roberta: optimizer.schedule=wsd optimizer.decay_steps=3801 -> optimizer.warmup_steps
  roberta: optimizer.decay_steps=100 -> --config.optimizer.schedule=wsd
  roberta: optimizer.update_clipping=stable_adamw optimizer.clip_norm=0.0
    -> --config.optimizer.adam_eps_placement=corrected --config.optimizer.adam_bias_correction=true
  roberta: optimizer.update_clipping=stable_adamw optimizer.adam_eps_placement=corrected
    -> --config.optimizer.clip_norm=0
  roberta: model.position=rope -> --config.model.relative_position=none
  roberta: model.position=none model.relative_position=none -> --config.model.position=rope
  roberta: model.position=rope model.relative_position=none model.num_heads=128 -> model.hidden_size
  roberta: model.norm=rmsnorm -> --config.model.norm_bias=false
  roberta: model.embedding_norm=False -> model.norm_placement
  roberta: model.global_layers=1,0 -> model.num_layers
  roberta: model.global_layers=0,2 -> model.num_layers
  roberta: model.global_layers=0 model.global_every=2 -> one of them
  roberta: train.batch_size_start=8 -> train.batch_warmup_steps
  roberta: train.batch_warmup_steps=8 -> train.batch_size_start
  roberta: train.batch_size_start=32 train.batch_warmup_steps=8 -> train.microbatches
  roberta: train.batch_size_start=12 train.batch_warmup_steps=8 train.microbatches=4 -> train.batch_size=32
  roberta: train.batch_size_start=8 train.batch_warmup_steps=10 train.microbatches=4
    -> --config.train.batch_warmup_steps=12
  roberta: train.batch_size_start=8 train.batch_warmup_steps=6 train.microbatches=4 data.feed=seqio
    data.source=seqio:mine
    -> --config.data.feed=records
  roberta: train.batch_size_start=8 train.batch_warmup_steps=4002 train.microbatches=4
    -> --config.train.batch_warmup_steps=399
  roberta: train.init_grow=tile -> --config.train.init_from=DIR
  roberta: train.checkpoint_steps=100,4001 -> from 1 to 4000
  roberta: train.microbatches=5 -> use 30 or 35
  roberta: data.source= -> --config.data.source=installed_docs
  roberta: mesh.data=0 -> mesh.fsdp
  roberta: mesh.fsdp=-1 -> mesh.data
  roberta: corruption.mask_rates=(0.1,0.3) -> ascending
  roberta: corruption.mask_rates=(0.0,0.3),(0.0,0.2) -> ascending
  roberta: corruption.mask_rates=(0.0,0.3),(1.0,0.2) -> ascending
  roberta: corruption.mask_rates=(0.0,1.0) -> in (0, 1)
  roberta: corruption.mask_rates=(0.0,0.3) corruption.mask_rule=electra_google
    corruption.random_token_rate=0.0
    -> --config.corruption.mask_rates=
  roberta: corruption.whole_words=True corruption.mask_rule=electra_google corruption.random_token_rate=0.0
    -> --config.corruption.mask_rule=count
  coco_lm: objectives.scl.group_size=1 -> train.batch_size
  coco_lm: train.microbatches=2 -> use 64
  coco_lm: train.microbatches=2 objectives.scl.group_size=0 -> --config.train.microbatches=1
  coco_lm: objectives.scl.crop_fraction=0.001 -> crop has 0
  coco_lm: objectives.scl.crop_fraction=65.0 -> crop has 65
  coco_lm: objectives.scl.projection_size=64
    -> --config.objectives.scl.head=projection --config.objectives.scl.projection_size=0
  coco_lm: data.packing=segments -> --config.objectives.scl.max_segments=16
  coco_lm: objectives.scl.max_segments=2 -> --config.objectives.scl.max_segments=0
  amos_coco_taco: objectives.taco.group_size=24 -> use 96
  amos_coco_taco: objectives.taco.window=128 -> data.length
  roberta: objectives.mlm.weight=0.0 -> no objective is on
  roberta: objectives.rtd.weight=1.0 -> corruption.kind
  coco_lm: objectives.mlm.weight=1.0 -> corruption.kind
  coco_lm: objectives.all_token.weight=1.0 -> objectives.clm.weight
  coco_lm: objectives.rtd.weight=0.0 -> --config.objectives.rtd.weight=50 --config.objectives.clm.copy=false
  mae_lm: corruption.mask_token_rate=0.8 corruption.random_token_rate=0.1
    -> --config.corruption.kind=mask --config.corruption.mask_token_rate=1.0
  mae_lm: objectives.mlm.weight=1.0 -> --config.objectives.mlm.weight=0
  mae_lm: objectives.taco.weight=1.0 -> --config.objectives.taco.weight=0
  mae_lm: objectives.scl.weight=1.0 -> --config.corruption.mask_special=sep_only
  mae_lm: objectives.mae.decoder_positions=shared model.position=none
    -> --config.objectives.mae.decoder_positions=own
  mae_lm: objectives.mae.decoder_relative_position=True model.relative_position=none
    -> --config.objectives.mae.decoder_relative_position=false
  roberta: corruption.random_token_rate=0.21 -> corruption.mask_token_rate
  coco_lm: corruption.mask_token_rate=0.8 corruption.random_token_rate=0.1 -> corruption.kind
  electra_google: corruption.random_token_rate=0.1 -> corruption.mask_rule
  roberta: model.freeze_embeddings=checkpoint -> model.freeze_embeddings_from
  roberta: model.freeze_embeddings_from=runs/x -> model.freeze_embeddings
  roberta: generator.init_from=runs/amos -> corruption.kind
  roberta: generator.frozen=True -> corruption.kind
  coco_lm: generator.num_heads=3 -> generator.hidden_size
  coco_lm: model.position=rope model.relative_position=none generator.share_embeddings=tokens
    generator.hidden_size=36 generator.num_heads=4
    -> even
  amos: generator.mlm_layers= generator.separate_layers=1,2 generator.mixture=uniform
    generator.share_embeddings=none
    -> --config.generator.share_embeddings=tokens --config.generator.frozen=false
  roberta: train.total_steps=3000000000 -> in [1, 2.14748e+09]
  coco_lm: generator.hidden_size=64 -> generator.share_embeddings
  coco_lm: generator.frozen=True -> --config.generator.init_from=DIRECTORY
  coco_lm: generator.temperature_start=2.0
    -> --config.generator.temperature_start=2.0 --config.generator.temperature_decay=0.1
  coco_lm: generator.temperature_decay=0.1
    -> --config.generator.temperature_start=2.0 --config.generator.temperature_decay=0.1
  coco_lm: generator.loss_weight=0.0 -> generator.frozen
  amos: generator.mlm_layers=1,2,4 -> generator.num_layers
  amos: generator.mlm_layers=1,2 -> generator.num_layers
  amos: generator.mlm_layers=0,3 -> generator.num_layers
  amos: generator.mlm_layers=3,1 -> generator.num_layers
  amos: generator.mlm_layers=1,1,3 -> generator.num_layers
  amos: generator.separate_layers=1,2 -> generator.mlm_layers
  amos: generator.mlm_layers= generator.separate_layers=0,2 -> at least 1
  amos: generator.mlm_layers=3 -> generator.mixture
  coco_lm: generator.mixture=adversarial -> generator.mlm_layers
  amos: generator.mixture=none -> generator.mlm_layers
  coco_lm: generator.hidden_size=64 generator.projection=none generator.share_embeddings=tokens
    -> --config.generator.share_embeddings=none
  amos: generator.share_embeddings=gdes -> generator.mixture
  coco_lm: generator.share_embeddings=gdes generator.frozen=True generator.init_from=runs/x
    -> --config.generator.share_embeddings=none
  amos: generator.share_embeddings=gdes generator.mlm_layers= generator.separate_layers=1,3
    generator.mixture=uniform
    -> --config.generator.share_embeddings=none
  amos: generator.sampling_dropout=eval model.dropout=0.1 -> generator.mixture
  amos: generator.mixture=fixed generator.mixture_weights=0.5,0.25,0.26 -> 3 weights
  amos: generator.mixture=fixed generator.mixture_weights=1.01,0.0,-0.01 -> 3 weights
  amos: generator.mixture_weights=0.5,0.25,0.25 -> generator.mixture
  amos: generator.frozen=True generator.init_from=runs/amos -> generator.mixture
  amos: generator.mixture=uniform generator.adv_mlm_multiplier=0.1 -> generator.mixture
  roberta: train.checkpoint_steps=0 -> from 1 to 4000
  coco_lm: objectives.scl.group_size=0 train.batch_size=1 -> at least 2
  amos: generator.mlm_layers= generator.separate_layers=2 generator.mixture=none -> two or more
  roberta: data.temperature=2.0 -> data.mixture
  # Devices.
  roberta: train.batch_size=300 devices=8 -> use 296 or 304
  roberta: mesh.tensor=4 devices=8 -> model.num_heads=2: not divisible by mesh.tensor=4
  roberta: model.hidden_size=126 mesh.fsdp=4 devices=8 -> not divisible by mesh.fsdp=4
  roberta: model.mlp_size=511 mesh.tensor=2 devices=8 -> model.mlp_size=511
  electra: generator.mlp_size=255 mesh.tensor=1 mesh.fsdp=2 mesh.data=-1 generator.hidden_size=63
    generator.num_heads=1 devices=8 -> generator.hidden_size=63
  roberta: train.microbatches=8 devices=8 -> multiple of 64, as needed by train.microbatches=8 and 8 devices
  # 96 rows leave data x fsdp at most 32 of 64, two heads leave tensor at most 2.
  roberta: train.batch_size=96 mesh.data=3 devices=8
    -> --config.mesh.data=8 --config.mesh.fsdp=1 --config.mesh.tensor=1
  roberta: train.batch_size=96 mesh.data=4 mesh.fsdp=2 mesh.tensor=2 devices=8
    -> --config.mesh.data=4 --config.mesh.fsdp=2 --config.mesh.tensor=1
  roberta: train.batch_size=96 mesh.data=1 mesh.tensor=8 devices=64
    -> --config.mesh.data=32 --config.mesh.fsdp=1 --config.mesh.tensor=2
  roberta: train.batch_size=96 mesh.fsdp=16 devices=24
    -> --config.mesh.data=3 --config.mesh.fsdp=8 --config.mesh.tensor=1
"""

GOOD = """
  roberta: optimizer.warmup_steps=4000
  roberta: optimizer.schedule=wsd optimizer.decay_steps=3800 optimizer.decay_shape=one_minus_sqrt
  roberta: optimizer.end_learning_rate=0.002
  roberta: optimizer.update_clipping=stable_adamw optimizer.adam_eps_placement=corrected optimizer.clip_norm=0
  roberta: model.relative_max_distance=10
  roberta: model.scan_unroll=2
  roberta: model.global_layers=0,1
  roberta: model.position=rope model.relative_position=none
  roberta: model.embedding_norm=False model.norm_placement=pre
  roberta: model.norm=rmsnorm model.norm_bias=False
  roberta: model.relative_position=none model.relative_buckets=33
  roberta: model.freeze_embeddings=checkpoint model.freeze_embeddings_from=runs/x
  roberta: train.checkpoint_steps=1,4000
  roberta: train.batch_size_start=24 train.batch_warmup_steps=3999 train.microbatches=4
  roberta: train.spike_roll_back=True train.spike_zscore=8
  roberta: train.trackers=wandb
  roberta: corruption.mask_token_rate=0.9 corruption.random_token_rate=0.1
  roberta: corruption.mask_rates=(0.0,0.3),(0.99,0.15)
  roberta: generator.mlm_layers=3,1 generator.mixture=adversarial
  roberta: objectives.scl.group_size=7 objectives.taco.group_size=9 objectives.taco.window=500
  roberta: data.source= data.directory=records
  coco_lm: objectives.scl.crop_fraction=64.0
  coco_lm: objectives.scl.crop_fraction=0.016
  coco_lm: objectives.scl.group_size=2 train.microbatches=16
  coco_lm: objectives.rtd.weight=0.0 objectives.clm.copy=False
  coco_lm: objectives.rtd.weight=0.0 objectives.clm.stop_gradient=False
  coco_lm: generator.hidden_size=64 generator.share_embeddings=tokens
  coco_lm: generator.hidden_size=64 generator.projection=embeddings
  coco_lm: generator.hidden_size=64 generator.projection=none generator.share_embeddings=none
  coco_lm: generator.temperature_start=2.0 generator.temperature_decay=0.1
  coco_lm: generator.loss_weight=0.0 generator.frozen=True generator.init_from=runs/x
  amos_coco_taco: objectives.taco.window=127
  amos: generator.mixture=uniform generator.frozen=True generator.init_from=runs/amos
  amos: generator.mixture=fixed generator.mixture_weights=1.0,0.0,0.0
  amos: generator.mlm_layers= generator.separate_layers=1,1 generator.mixture=uniform
  amos: generator.sampling_dropout=eval
  electra_google: corruption.mask_token_rate=0.7
  mae_lm: objectives.scl.weight=1.0 corruption.mask_special=sep_only
  # 32 rows, one group, eight devices; the tensor axis does not cut the batch.
  coco_lm: devices=8
  roberta: train.batch_size=4 mesh.tensor=2 devices=8
"""


def rows(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
  """Yields (tiny recipe, {field: its value as text}, word) of each row of a table."""
  lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
  for line in "\n".join(lines).replace("\n    ", " ").splitlines():
    changes, _, word = line.strip().partition(" -> ")
    recipe, _, pairs = changes.partition(":")
    yield f"{recipe}_tiny", dict(pair.split("=", 1) for pair in pairs.split()), word
