"""Every config that cannot work is refused in one line that names the field; its neighbours are not.

Rows of the tables: 'RECIPE: FIELD=VALUE ... -> WORD', continued in lines that are further in: the tiny recipe
with the fields, as a user gives them, is refused in a line that names one of them and contains the word:
another field's name, a value, or the flag that the user pastes. 'devices' are of the machine.
"""

import pathlib
from collections.abc import Iterator
from fractions import Fraction

import pytest
from ml_collections import ConfigDict

from configs import arguments, base
from data.errors import ConfigError
from pretrain.command import override
from pretrain.settings import PRETRAINING, mixture
from pretrain.settings.mixture import Source, Stage

BAD = """
  roberta: seed=-1 -> in [0, 4.29497e+09]
  roberta: model.layer_norm_eps=0.0 -> above 0
  roberta: corruption.mask_rate=0.0 -> in (0, 1)
  roberta: data.fraction=0.0 -> in (0, 1]
  roberta: model.num_heads=3 -> model.hidden_size
  roberta: optimizer.decay_shape=one_minus_sqrt -> --config.optimizer.schedule=wsd
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
  roberta: model.relative_position=disentangled model.attention=by_rows -> --config.model.attention=auto
  roberta: model.relative_position=disentangled model.global_every=2 -> no windows
  roberta: model.relative_position=disentangled model.num_kv_heads=1 -> --config.model.num_kv_heads=0
  coco_lm: objectives.rtd.head=context -> --config.objectives.rtd.head=linear
  roberta: model.norm=rmsnorm -> --config.model.norm_bias=false
  roberta: model.embedding_norm=False -> model.norm_placement
  roberta: model.global_layers=0,2 -> model.num_layers
  roberta: model.global_layers=0 model.global_every=2 -> one of them
  roberta: train.batch_size_start=8 -> train.batch_warmup_steps
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
  coco_lm: generator.loss_weight=0.0 -> generator.frozen
  amos: generator.mlm_layers=1,2,4 -> generator.num_layers
  amos: generator.mlm_layers=0,3 -> generator.num_layers
  amos: generator.mlm_layers=3,1 -> generator.num_layers
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
  roberta: mesh.tensor=4 devices=8 -> model.num_heads=2, mesh.tensor=4: not divisible by 4
  roberta: model.hidden_size=126 mesh.fsdp=4 devices=8 -> not divisible by 4
  roberta: model.mlp_size=511 mesh.tensor=2 devices=8 -> model.mlp_size=511
  electra: generator.mlp_size=255 mesh.tensor=1 mesh.fsdp=2 mesh.data=-1 generator.hidden_size=63
    generator.num_heads=1 devices=8 -> generator.hidden_size=63
  roberta: train.microbatches=8 devices=8 -> 8 devices along data and fsdp expected a multiple of 64
  roberta: mesh.data=3 devices=8 -> the number of devices, 8; use -1
"""

GOOD = """
  roberta: optimizer.warmup_steps=4000 model.relative_max_distance=10 model.global_layers=0,1
    model.embedding_norm=False model.norm_placement=pre model.norm=rmsnorm model.norm_bias=False
  roberta: optimizer.schedule=wsd optimizer.decay_steps=3800 optimizer.decay_shape=one_minus_sqrt
    optimizer.end_learning_rate=0.002 optimizer.update_clipping=stable_adamw
    optimizer.adam_eps_placement=corrected optimizer.clip_norm=0
  roberta: model.position=rope model.relative_position=none model.relative_buckets=33
    model.freeze_embeddings=checkpoint model.freeze_embeddings_from=runs/x
  roberta: train.checkpoint_steps=1,4000 train.spike_roll_back=True train.spike_zscore=8 train.trackers=wandb
    train.batch_size_start=24 train.batch_warmup_steps=3999 train.microbatches=4
  roberta: corruption.mask_token_rate=0.9 corruption.random_token_rate=0.1
    corruption.mask_rates=(0.0,0.3),(0.99,0.15) data.source= data.directory=records
    generator.mlm_layers=3,1 generator.mixture=adversarial
    objectives.scl.group_size=7 objectives.taco.group_size=9 objectives.taco.window=500
  coco_lm: objectives.scl.crop_fraction=64.0 objectives.scl.group_size=2 train.microbatches=16
  coco_lm: objectives.scl.crop_fraction=0.016 objectives.rtd.weight=0.0 objectives.clm.copy=False
    generator.hidden_size=64 generator.share_embeddings=tokens
    generator.temperature_start=2.0 generator.temperature_decay=0.1
  coco_lm: objectives.rtd.weight=0.0 objectives.clm.stop_gradient=False generator.hidden_size=64
    generator.projection=embeddings
  coco_lm: generator.hidden_size=64 generator.projection=none generator.share_embeddings=none
    generator.loss_weight=0.0 generator.frozen=True generator.init_from=runs/x
  amos_coco_taco: objectives.taco.window=127
  amos: generator.mixture=uniform generator.frozen=True generator.init_from=runs/amos
  amos: generator.mixture=fixed generator.mixture_weights=1.0,0.0,0.0 generator.sampling_dropout=eval
  amos: generator.mlm_layers= generator.separate_layers=1,1 generator.mixture=uniform
  electra_google: corruption.mask_token_rate=0.7
  mae_lm: objectives.scl.weight=1.0 corruption.mask_special=sep_only
  # 32 rows, one group, eight devices; the tensor axis does not cut the batch.
  coco_lm: devices=8
  roberta: train.batch_size=4 mesh.tensor=2 devices=8
"""


def _rows(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
  """Yields (recipe, {field: its value as text}, word) of each row of a table."""
  lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
  for line in "\n".join(lines).replace("\n    ", " ").splitlines():
    changes, _, word = line.strip().partition(" -> ")
    recipe, _, pairs = changes.partition(":")
    yield f"{recipe}_base:tiny", dict(pair.split("=", 1) for pair in pairs.split()), word


def _problem(recipe: str, given: dict[str, object]) -> str:
  """The refusal of a recipe with fields, as on a command line; '' without one."""
  devices = given.pop("devices", None)
  config = arguments.recipe(recipe)
  try:
    override(config, [f"--config.{name}={text}" for name, text in given.items()], PRETRAINING)
    PRETRAINING.check(config, num_devices=devices and int(devices))
  except ConfigError as error:
    return str(error)
  return ""


def test_a_bad_config_is_refused_with_a_line_that_names_the_fields_and_the_way_out():
  failures = []
  for recipe, given, word in _rows(BAD):
    found = _problem(recipe, given)
    first, *ways = found.splitlines() or [""]
    is_told = word in " ".join(found.split()) and any(name in first for name in given)
    if not is_told or not all(way.startswith("  --config.") for way in ways) or len(first) > 250:
      failures.append(f"{recipe} {given}: expected {word!r}, found {found}")
  assert not failures, "\n".join(failures)


def test_good_configs_and_fields_that_nothing_reads_are_not_refused():
  tables = [*_rows(GOOD), *((recipe, {}, "") for recipe in {recipe for recipe, *_ in _rows(BAD)})]
  failures = [
    f"{recipe} {given}: {found}" for recipe, given, _ in tables if (found := _problem(recipe, given))
  ]
  assert not failures, "\n".join(failures)


def test_missing_and_unknown_fields_are_named():
  config = base.get_config()
  with config.unlocked():
    config.objectives.rtd.wieght = 3.0
  with pytest.raises(
    ConfigError, match=r"^objectives\.rtd\.wieght: no such field; did you mean 'objectives\.rtd"
  ):
    PRETRAINING.check(config)
  config = ConfigDict({name: value for name, value in base.get_config().items() if name != "seed"})
  with pytest.raises(ConfigError, match=r"^seed: missing"):
    PRETRAINING.check(config)


# Fields without a limit or choices, because others look at them: data.prepare, preflight, a rule.
FREE = {"generator.reversal_multiplier", "generator.adv_mlm_multiplier", "recipe", "generator.init_from"}
FREE |= {"model.freeze_embeddings_from", "train.init_from", "train.probe_data"}
FREE |= {"data.mixture", "data.stages", "data.source", "data.directory", "data.text_field", "data.module"}
FREE |= {"data.tfds_directory", "data.clean", "data.vocabulary"}


def test_every_field_keeps_its_type_its_choices_and_its_limits():
  problem, failures = PRETRAINING.value_problem, []
  for name, default in PRETRAINING.defaults.items():
    kind = PRETRAINING.kinds[name]
    refused = [3 if isinstance(default, str | tuple) else "3", None]
    if isinstance(default, bool | int | float):
      refused.append(1 if isinstance(default, bool) else True)
    if isinstance(default, float):
      refused += [float("nan"), float("inf"), -float("inf")]
    if kind.choices:
      refused.append(kind.choices[0] + "x")
    failures += [
      f"{name}={value!r}" for value in refused if not (problem(name, value) or "").startswith(name)
    ]
    failures += [f"{name}={value!r}" for value in (default, *kind.choices) if problem(name, value)]
    if not isinstance(default, bool | tuple):
      is_free = not (kind.choices if isinstance(default, str) else kind.limit)
      failures += [f"{name}: no rule"] * (is_free != (name in FREE))
  assert not failures, "\n".join(failures)
  assert "did you mean 'adversarial'?" in problem("generator.mixture", "adversial")
  assert "finite" in problem("generator.mixture_weights", (0.5, float("nan")))
  for wrong in ((0.0, 0.3), ((0.0, 0.3, 0.1),), ((0.0, "0.3"),), ((0.0, float("inf")),)):
    assert problem("corruption.mask_rates", wrong), wrong
  assert (
    problem("generator.mlm_layers", (1.0, 2)) and problem("seed", 2**32) and not problem("seed", 2**32 - 1)
  )


def _stages(mixture_text="", stages=""):
  return mixture.stages({"mixture": mixture_text, "stages": stages})


def test_sources_and_rates_are_those_that_were_written():
  for text, sources in (
    ("a/wiki:0.7,b/books:0.3", [("a/wiki", "7/10"), ("b/books", "3/10")]),
    ("wiki:7, books:3e-1", [("wiki", "7"), ("books", "3/10")]),
    ("gs://bucket/wiki:1,s3://b/c:.5", [("gs://bucket/wiki", "1"), ("s3://b/c", "1/2")]),
    ("a:b/c:2:0.7,x,y:0.3", [("a:b/c:2", "7/10"), ("x,y", "3/10")]),  # ':' and ',' in names
    ("wiki,gs://bucket/books", [("wiki", None), ("gs://bucket/books", None)]),
    ("alone:1", [("alone", "1")]),
  ):
    expected = [Source(directory, rate and Fraction(rate)) for directory, rate in sources]
    assert _stages(text) == [Stage(0, expected)], text
  half = Source("wiki", Fraction(1, 2))
  assert _stages(stages="0: wiki:0.5,a;b:0.5; 100000:wiki:0.5 ;200000: books") == [
    Stage(0, [half, Source("a;b", Fraction(1, 2))]),
    Stage(100_000, [half]),
    Stage(200_000, [Source("books", None)]),
  ]
  data = {"mixture": "", "stages": "0: wiki:1,books:1; 5: pages:1,wiki:2"}
  assert mixture.directories(data) == ["wiki", "books", "pages"]
  names = {text: mixture.seqio_name({"mixture": text}) for text in ("seqio:x", "seqio:x:1", "seqio:x,y", "x")}
  assert names == {"seqio:x": "x", "seqio:x:1": "", "seqio:x,y": "", "x": ""}
  stages = [[0, [["wiki", "d", "7/10"], ["books", "e", "3/10"]]], [1_000, [["wiki", "d", "1"]]]]
  assert mixture.shown(stages) == "from step 0: wiki 0.7, books 0.3; from step 1,000: wiki 1"


# (fields of data, part of the only line)
MIXTURES = [
  ({"mixture": "a:0,b:1"}, "rate of 'a' is 0"),
  ({"mixture": "a:-2,b:1"}, "rate of 'a' is -2"),
  ({"mixture": "a:nan,b:1"}, "rate of 'a' is nan"),
  ({"mixture": "a:1,b:-Inf"}, "rate of 'b' is -Inf"),
  ({"mixture": "a:1,b"}, "'b' has no rate"),
  ({"mixture": "a:1,b:x"}, "'b:x' has no rate"),
  ({"mixture": "a:1,b:1e9999"}, "'b:1e9999' has no rate"),
  ({"mixture": "a:1,./a:2"}, "'a' is named twice"),
  ({"mixture": "a,b,a"}, "'a' is named twice"),
  ({"mixture": f"a:1,{pathlib.Path('a').absolute()}:2"}, "'a' is named twice"),
  ({"mixture": "a,,b"}, "no directory"),
  ({"mixture": ":1,b:1"}, "no directory"),
  ({"mixture": "seqio:x:1,b:1"}, "seqio Mixture"),
  ({"mixture": "seqio:x"}, "\n  python -m data.vocabulary train --source=seqio:x --module=FILE"),
  ({"mixture": "a:1", "directory": "b"}, "data.directory='b'"),
  ({"mixture": "a:1", "stages": "0: a:1"}, "data.mixture='a:1', data.stages='0: a:1'"),
  ({"stages": "a:1"}, "data.stages='a:1': expected 'STEP: DIR:RATE"),
  ({"stages": "5: a:1"}, "at step 5; expected step 0"),
  ({"stages": "-1: a:1"}, "at step -1; expected step 0"),
  ({"stages": "0: a:1; 9: b:1; 9: a:1"}, "step 9 comes after step 9"),
  ({"stages": "0: a:1; 9: b:1; 3: a:1"}, "step 3 comes after step 9"),
  ({"stages": "0: a:1; 9: b:0"}, "rate of 'b' is 0"),
  ({"stages": "0: a:1; 125000: b:1"}, "steps 125000 are too late"),
  ({"mixture": "a:1", "clean": "exact"}, "data.clean='exact'"),
  ({"mixture": "a:1", "text_field": "body"}, "data.text_field='body'"),
  ({"temperature": 2.0}, "it needs rates"),
  ({"mixture": "a:1", "temperature": 0.09}, "[0.1, 100]"),
  ({"mixture": "a:1", "temperature": -1.0}, "[0, 100]"),
  ({"mixture": "a:1", "temperature": float("nan")}, "data.temperature=nan"),
  # A feed.
  (
    {"feed": "seqio", "source": "installed_docs"},
    "data.source='installed_docs': expected the name",
  ),
  ({"feed": "seqio", "source": "seqio:"}, "\n  --config.data.source=seqio:NAME"),
  *(
    ({"feed": "seqio", "source": "seqio:x", name: value}, f"data.{name}={value!r}: needs prepared")
    for name, value in (("clean", "exact"), ("directory", "d"), ("fraction", 0.5))
  ),
]
GOOD_MIXTURES = [
  {"mixture": "a:1,gs://b/c:2", "temperature": 0.1, "source": ""},
  {"stages": "0: a:1; 124999: b:1"},
  {"mixture": "seqio:x", "vocabulary": "words", "module": "tasks.py"},
  {"feed": "seqio", "source": "seqio:x"},
]


def test_each_mistake_is_told_and_its_neighbour_is_none():
  failures = []

  def found_of(changes):
    return _problem("roberta_base", {f"data.{name}": value for name, value in changes.items()})

  for changes, part in MIXTURES:
    found = found_of(changes)
    if part not in found or len(found.splitlines()[0]) > 160:
      failures.append(f"{changes}: expected {part!r}, found {found}")
  failures += [f"{changes}: {found}" for changes in GOOD_MIXTURES if (found := found_of(changes))]
  assert not failures, "\n".join(failures)
