"""`--dry_run` and `--plan`: FLOP by hand-worked numbers, bytes of a device, does it fit, largest batch."""

import os
import pathlib
import re
import subprocess
import sys
from unittest import mock

import jax
import pytest

from configs import backbones, base
from data.errors import ConfigError
from lab.speed import cases
from lab.speed.estimate import parse, total_flops
from pretrain import main
from pretrain.command import load_config
from pretrain.mesh import chips
from pretrain.plan import compile_ahead, cost, dry_run, flops, rates
from tests.pretrain.small_run import devices, get_config, small_config, small_run

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
# The same of local layers, at ModernBERT's 30 % of masked tokens and its vocabulary.
LOCAL = [
  ("modern", {512: 786, 1_024: 824, 8_192: 1_353}),
  ("modern_large", {512: 2_243, 1_024: 2_307, 8_192: 3_189}),
  ("ettin_17m", {512: 53, 1_024: 58, 8_192: 124}),
]


def test_training_cost_is_the_tables():
  rows = [(name, expected, config(*changes)) for name, expected, changes in TABLE]
  fields = MLM | {"corruption.mask_rate": 0.3, "model.vocab_size": 50_368}
  for backbone, by_length in LOCAL:
    for length, expected in by_length.items():
      made = backbones.apply(config(fields, {"data.length": length}), backbone)
      rows.append((f"{backbone} {length}", expected, made))
  found = {name: flops.training_flops_per_token(made) / 1e6 for name, _, made in rows}
  # The table is rounded to 1 MFLOP and leaves out the RTD head's 2H = 0.005 MFLOP (0.006 for large).
  assert found == pytest.approx({name: expected for name, expected, _ in rows}, abs=0.55, rel=0)
  amos = config(AMOS)
  assert flops.training_flops_per_token(amos.to_dict()) == flops.training_flops_per_token(amos)  # stored


def difference(changes: dict, *before: dict) -> float:
  with_change = flops.training_flops_per_token(config(*before, changes))
  return with_change - flops.training_flops_per_token(config(*before))


def test_what_each_field_adds_to_the_cost():
  whole, some = 2 * 768 * 32_768, 77 / 512  # a softmax; the share of masked tokens
  coco, amos = (flops.forward_parts(config(fields)) for fields in (COCO_LM, AMOS))
  names = {"encoder", "generator", "generator heads", "sampling pass", "rtd head", "clm head", "scl pass"}
  assert set(coco) == names
  generator = coco["generator"] + coco["generator heads"]
  assert coco["sampling pass"] == pytest.approx(generator / 3)
  frozen, still = {"generator.frozen": True}, {"model.dropout": 0.0, "model.attention_dropout": 0.0}
  half = difference({"objectives.scl.crop_fraction": 0.5}, COCO_LM)
  taco = {"objectives.taco.weight": 1.0, "objectives.taco.num_negatives": 50}
  rows = [
    ("a frozen generator runs forward only", difference(frozen, COCO_LM, ONE_PASS), -2 * generator),
    ("what is frozen has no dropout", difference(ONE_PASS, COCO_LM, frozen), 0),
    ("without dropout no second pass", difference(ONE_PASS, COCO_LM, still), 0),
    ("one dropout is enough", difference(ONE_PASS, COCO_LM, {"model.dropout": 0.0}), -generator),
    ("soft embeddings", difference({"generator.mixture": "uniform"}, AMOS), -3 * some * whole),
    ("all-token MLM", difference({"objectives.all_token.weight": 1.0}, RTD), 3 * whole),
    ("a dense RTD head", difference({"objectives.rtd.head": "dense"}, RTD, ELECTRA), 3 * 2 * 768**2),
    ("a product for each candidate", difference(taco, MLM), 3 * 2 * 768 * 51),
    ("crops in tokens", difference({"objectives.scl.crop_fraction": 256.0}, COCO_LM), half),
  ]
  every = {"objectives.mlm.positions": "all"}
  rows.append(("all positions", difference(every, MLM), 3 * (1 - some) * (whole + 2 * 768**2)))
  fewer = -3 * some * 2 * 256 * 256  # MC-BERT's head goes to the encoder's width by its own product
  electra = flops.forward_parts(config(RTD, ELECTRA, ONE_PASS))["generator heads"]
  rows.append(("heads of ELECTRA", electra, some * 2 * (256 * 256 + 256 * 768 + 768 * 32_768)))
  given = {"generator.projection": "embeddings"}
  rows.append(("by the table's projection", difference(given, RTD, ELECTRA, ONE_PASS), fewer))
  separate = {"generator.separate_layers": (4, 6, 8), "generator.mlm_layers": ()}
  separate = flops.forward_parts(config(AMOS, separate))
  rows.append(("separate generators", separate["generator"], amos["generator"] * 18 / 8))
  rows.append(("their heads", separate["generator heads"], amos["generator heads"]))
  mae = flops.forward_parts(config(MAE, {"objectives.mae.decoder_layers": 2}))
  rows.append(("a decoder", mae["mae decoder"], flops.forward_parts(config(MLM))["encoder"] / 6))
  fields = {"objectives.scl.max_segments": 4, "data.packing": "segments"}
  rows.append(("whole rows", flops.forward_parts(config(COCO_LM, fields))["scl pass"], coco["encoder"]))
  # 0.07 * 100 is 7.000000000000001 in floating point; of stages the largest rate counts.
  change = {"corruption.mask_rates": ((0.0, 0.05), (0.8, 0.07)), "data.length": 100}
  head = flops.forward_parts(config(MLM, change))["mlm head"]
  rows.append(("masked positions", head, 0.07 * 2 * 768 * (768 + 32_768)))
  found = {name: value for name, value, _ in rows}
  assert found == pytest.approx({name: expected for name, _, expected in rows}, rel=1e-6, abs=1)


def test_machines_their_peaks_and_those_that_there_are_not():
  names = {"v5e:2x4": 8, "v6e:16x16": 256, "v5p:2x2x4": 16, "v5p:4x4x4": 64, "h100": 1, "h200:8": 8}
  names |= {"a100:24": 24, "cpu:3": 3, "cpu": 1, "cpu:512": 512}
  assert {name: chips.parse(name).size for name in names} == names
  platforms = {name: chips.parse(name).chip.platform for name in ("v5e:2x4", "h100", "cpu:3")}
  assert platforms == {"v5e:2x4": "tpu", "h100": "cuda", "cpu:3": "cpu"}
  wrong = ["v5e", "v5e:", "v5e:2x3", "v5e:2x2x2", "v5p:2x4", "v5p:3x4x4", "v5p:0x4x4", "h100:12", "h100:0"]
  taken = []
  for name in [*wrong, "h100:2x8", "cpu:0", "cpu:", "b300:8", ":8", ""]:
    with pytest.raises(ConfigError, match="v5p:AxBxC") as raised:
      taken.append((name, chips.parse(name)))
    assert repr(name) in str(raised.value)
  tera = {"NVIDIA H200": 989, "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "TPU v4": 275}
  tera |= {"NVIDIA A100-SXM4-40GB": 312, "Tesla V100-SXM2-16GB": 125, "TPU v5 lite": 197, "TPU v5p": 459}
  tera |= {"TPU v5": 459, "TPU v6 lite": 918}
  assert {kind: chips.peak_flops(kind) for kind in tera} == {kind: of * 1e12 for kind, of in tera.items()}
  assert chips.peak_flops("cpu") is None


def test_bytes_of_a_device_by_formula(small_records):
  def memory(recipe="mlm", number=1, **fields):
    fields = {"model.num_layers": 4} | {name.replace("__", "."): value for name, value in fields.items()}
    run = small_run(small_config(recipe, small_records, fields), number=number)
    return run, cost.memory_per_device(run)

  run, plain = memory()
  counts = dry_run.parameter_counts(run.abstract_state.params)
  number = counts["total"]
  assert number == counts["encoder"] + counts["heads"] and counts["generator"] == 0
  assert plain["gradients"] == 4 * number
  assert 12 * number <= plain["state"] <= 12 * number + 64  # parameters, two moments, and a few counters
  assert plain["vocabulary logits"] == 3 * 4 * 256 * 300  # all 8 x 32 positions in one chunk
  assert memory(model__vocab_chunk_rows=8)[1]["vocabulary logits"] == 3 * 4 * 8 * 300
  cut, shared = memory(number=8, mesh__fsdp=8)[1], memory(number=8, optimizer__shard_update=True)[1]
  assert cut["state"] < plain["state"] / 3 and shared["state"] < plain["state"] / 3
  assert cut["gradients"] < plain["gradients"] / 3 and shared["gradients"] == plain["gradients"]
  assert cut["activations"] == shared["activations"] == plain["activations"] / 8
  activations = [memory(model__remat=how)[1]["activations"] for how in ("full", "cheap", "none")]
  assert activations == sorted(set(activations)) and activations[1] == plain["activations"]
  assert memory(train__microbatches=4)[1]["activations"] == plain["activations"] / 4
  assert memory(model__attention="plain")[1]["activations"] > plain["activations"]
  of_mae = {"objectives__mlm__weight": 0.0, "objectives__mae__weight": 1.0, "model__remat": "full"}
  one, other = (
    memory(**of_mae, model__num_layers=encoder, objectives__mae__decoder_layers=decoder)[1]["activations"]
    for encoder, decoder in ((1, 3), (3, 1))
  )
  assert one == other
  # COCO-LM's crops pass four more layers, its generator has one.
  coco, nine = memory("coco_lm", model__remat="full")[1], memory(model__remat="full", model__num_layers=9)[1]
  assert coco["activations"] == nine["activations"]


def test_a_dry_run_says_everything_and_writes_nothing(small_records, tmp_path):
  made = small_config("union", small_records)
  with devices(1):
    text = dry_run.dry_run(made, workdir=str(tmp_path / "run"))
    later = small_config("mlm", tmp_path / "later")
    assert "do not exist yet" in dry_run.dry_run(later, workdir=str(tmp_path / "run"))
  run = small_run(made)
  lines = {line.split("  ")[1]: line.split()[-1] for line in text.splitlines() if line.startswith("  ")}
  assert lines["tokens per step"] == "256" and lines["tokens in all"] == "1,536"  # 6 steps of 8 rows of 32
  assert lines["nominal training MFLOP per token"] == f"{flops.training_flops_per_token(made) / 1e6:,.1f}"
  assert lines["total"] == f"{dry_run.parameter_counts(run.abstract_state.params)['total']:,}"
  leaves = jax.tree_util.tree_leaves_with_path(run.abstract_state.params)
  assert {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves} <= lines.keys()
  assert "optimizer.learning_rate" in lines and list(tmp_path.iterdir()) == []
  assert 1e6 < cost.matmul_flops(128, repeats=2) < 1e16


def test_a_recipe_that_is_too_large_for_cpus_is_planned_for_other_machines(tmp_path, monkeypatch):
  monkeypatch.setattr(cost, "matmul_flops", lambda: 50e9)
  with devices(1):
    large = dry_run.dry_run(load_config("configs/coco_lm_base.py"), workdir=str(tmp_path))
    tiny = dry_run.dry_run(load_config("configs/coco_lm_base.py:tiny"), workdir=str(tmp_path))
  lines = dict(re.findall(r"^  (--plan=\S+) +(.*)$", large, re.MULTILINE))
  assert list(lines) == ["--plan=h100", "--plan=h200", "--plan=h200:8", "--plan=v5e:2x4"]
  assert lines["--plan=h200"] == (
    "140 h at 358 TFLOP/s, measured for coco_lm_base (docs/results/speed.md); --config.train.microbatches=4"
  )
  assert lines["--plan=h200:8"].startswith("18 h") and "GiB" not in large
  assert "half of the peak, not measured" in lines["--plan=v5e:2x4"]
  assert "--plan" not in tiny and re.search(r"memory per device, estimated .* GiB of .* GiB: fits\n", tiny)


def test_the_expected_speed_is_the_measured_one_of_the_method_or_of_the_backbone():
  for recipe, kind, tera, part in (
    ("roberta_base", "NVIDIA H200", 360, "measured for roberta_base (docs/results/speed.md)"),
    ("bert_base", "NVIDIA H200", 360, "measured for roberta_base ("),
    ("amos_base", "NVIDIA H200", 360, "measured for amos_base ("),
    ("electra_base", "NVIDIA H200", 310, "measured for electra_base ("),
    ("mae_lm_base", "NVIDIA H200", 345, "the mean measured for 5 recipes ("),
    ("modernbert_base", "NVIDIA H200", 236, "measured for roberta_base:modern ("),
    ("amos_base:modern", "NVIDIA H200", 236, "measured for roberta_base:modern ("),
    ("coco_lm_base", "NVIDIA A100-SXM4-40GB", 113, "36% of the peak, measured for coco_lm_base on an H200"),
    ("coco_lm_base", "TPU v5 lite", 98.5, "half of the peak, not measured"),
  ):
    name, _, argument = recipe.partition(":")
    made = load_config(f"configs/{name}.py{':' * bool(argument)}{argument}")
    flops_per_second, why = rates.expected(made, kind)
    assert flops_per_second / 1e12 == pytest.approx(tera, abs=0.6) and part in why, (recipe, kind, why)
    assert rates.expected(made, "cpu") is None
    made.train.peak_flops = 1e12
    assert rates.expected(made, kind) == (5e11, "half of the peak, not measured")


def test_microbatches_that_fit_are_named_by_formula(small_records):
  run = small_run(small_config("mlm", small_records))
  sizes = cost.memory_per_device(run)
  fixed = sum(sizes.values()) - sizes["activations"]
  for limit, expected in (
    (fixed + sizes["activations"], ": fits"),
    (fixed + sizes["activations"] / 2, ": does not fit; --config.train.microbatches=2 does"),
    (fixed, ": does not fit; no number of microbatches does"),
    (0, ""),
  ):
    line = cost.cost_lines(run, kind="TPU v4", limit=limit)["memory per device, estimated"]
    assert line == cost.gib(sum(sizes.values())) + (f" of {cost.gib(limit)}" if limit else "") + expected


# Of a step of 8 x 32 tokens on eight devices: the compiler's, the same on every machine. It must not grow
# unnoticed; where a change lowers it for good, lower it here too.
TEMPORARY_BYTES = 211_700


def test_a_step_for_eight_devices_is_compiled_and_its_bytes_are_the_compilers():
  # All positions are read: of its one layer the formula, which knows no pruning, counts all.
  made = get_config("mlm")
  made.update_from_flattened_dict({"mesh.data": 4, "mesh.fsdp": 2, "objectives.mlm.positions": "all"})
  run = compile_ahead.planned_run(made, jax.devices(), "cpu")
  step = compile_ahead.compile_step(run)
  sizes = step.bytes
  assert step.rows == 1 and step.fits(sizes["total"]) and not step.fits(sizes["total"] - 1)
  assert sizes["total"] == sizes["arguments"] + sizes["outputs"] - sizes["aliased"] + sizes["temporaries"]
  assert cost.local_bytes(run.abstract_state) <= sizes["arguments"] <= sizes["total"]
  assert sizes["temporaries"] <= 1.3 * TEMPORARY_BYTES
  products = total_flops(parse(step.program.as_text())) * 8
  assert products == pytest.approx(flops.training_flops_per_token(made) * 8 * 32, rel=0.07)
  for message, error in ((FULL, None), ("INVALID_ARGUMENT: no such thing", ConfigError)):
    refused = mock.Mock(compile=mock.Mock(side_effect=jax.errors.JaxRuntimeError(message)))
    with mock.patch.object(compile_ahead, "lower_step", return_value=refused):
      if error:
        with pytest.raises(error, match="no such thing"):
          compile_ahead.compile_step(run)
      else:
        step = compile_ahead.compile_step(run)
        assert step.bytes == {"total": 2 << 30} and not step.fits(3 << 30)


FULL = "RESOURCE_EXHAUSTED: Used 2.00G of 1.00G hbm"


def test_what_a_program_needs_by_its_analysis_or_by_the_compilers_refusal():
  sizes = {"argument": 100, "output": 90, "alias": 80, "temp": 900}
  sizes = {f"{kind}_size_in_bytes": size for kind, size in sizes.items()}
  analysis = mock.Mock(peak_memory_in_bytes=730, **sizes)
  for platform, temporaries in {"cpu": 900, "cuda": 900, "tpu": 620}.items():
    found = compile_ahead.memory(mock.Mock(memory_analysis=lambda: analysis), platform)
    kinds = {"arguments": 100, "outputs": 90, "aliased": 80, "temporaries": temporaries}
    assert found == kinds | {"total": 110 + temporaries}
  messages = {
    "RESOURCE_EXHAUSTED: ... Used 18.60G of 15.75G hbm. Exceeded ...": int(18.6 * 2**30),
    "RESOURCE_EXHAUSTED: memory required for HLO temporaries (512.00M) exceeds HBM": (512 << 20) + 7,
    "RESOURCE_EXHAUSTED: out of semaphores": None,
    "INVALID_ARGUMENT: Used 1G of 2G": None,
  }
  assert {text: compile_ahead.needed_bytes(text, arguments=7) for text in messages} == messages


def test_few_programs_are_compiled_until_the_largest_microbatch_is_known():
  allowed = [2**number for number in range(10)]
  for per_row, expected, first, most in (
    (10, 64, 64, 2),  # the formula was right: 128 rows are compiled no more
    (10, 64, 8, 2),
    (10, 64, 512, 2),
    (1, 512, 64, 2),
    (400, 2, 64, 3),
    (2_000, 0, 8, 2),
  ):
    tried = []

    def compiled(rows: int, per_row: int = per_row, tried: list = tried) -> tuple[int, bool]:
      tried.append(rows)
      return 100 + per_row * rows, 100 + per_row * rows <= 1_000

    found = compile_ahead.largest(compiled, allowed, limit=1_000, fixed=100, first=first)
    assert found == expected and len(tried) <= most, (per_row, first, tried)
  made = get_config("mlm")
  made.train.batch_size = 48
  found = cost.microbatches_of(made, 2, 2)
  assert found == {24: 1, 12: 2, 8: 3, 6: 4, 4: 6, 3: 8, 2: 12, 1: 24}


@pytest.mark.parametrize(
  ("machine", "largest"),
  [
    ("cpu:1", "8 rows a device"),
    pytest.param("v5e:2x4", "1 row a device", marks=pytest.mark.nightly),
    pytest.param("h100:8", "1 row a device", marks=pytest.mark.nightly),
  ],
)
def test_the_command_prints_a_plan_and_writes_nothing(tmp_path, machine, largest):
  platform = chips.parse(machine).chip.platform
  if not chips.is_installed(platform):
    pytest.skip(f"the compiler of {platform} is not installed (requirements-plan.txt)")
  command = [sys.executable, "-m", "pretrain.main", "--config=tests/pretrain/small_run.py:mlm", "--dry_run"]
  command += [f"--workdir={tmp_path / 'run'}", f"--plan={machine}"]
  kept = {} if platform == "cpu" else {"XLA_FLAGS": ""}  # compilers of others want none of the tests' flags
  done = subprocess.run(command, capture_output=True, text=True, env=os.environ | kept)
  assert done.returncode == 0, done.stderr
  for part in (": fits", f"that fits: {largest}", "nominal TFLOP per step and device", "device-hours"):
    assert part in done.stdout, part
  assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["v5e:2x2", "h100:4"])
def test_every_recipe_on_every_backbone_is_a_program_of_the_machine(target):
  machine, failures = chips.parse(target), []
  if not chips.is_installed(machine.chip.platform):
    pytest.skip(f"the compiler for {target} is not installed (requirements-plan.txt)")
  with mock.patch.dict(os.environ):
    found = compile_ahead.devices_of(machine)
  recipes = [path.stem for path in pathlib.Path(base.__file__).parent.glob("*_base.py")]
  for recipe in sorted(name for name in recipes if not name.startswith("finetune")):
    for backbone in ("", ":modern", ":deberta", ":deberta_tiny"):
      try:
        config = cases.make_config(recipe + backbone, batch=128, length=512, changes=["model.scan_unroll=1"])
        compile_ahead.lower_step(compile_ahead.planned_run(config, found, machine.chip.platform))
      except Exception as error:
        failures.append(f"{recipe}{backbone}: {type(error).__name__}: {error}"[:300])
  assert not failures, "\n".join(failures)


def test_a_config_that_does_not_fit_is_told_which_does_or_how_others_would(capsys):
  made, cpus = get_config("mlm"), chips.parse("cpu:8")
  made.train.batch_size = 64
  step = compile_ahead.compile_step(compile_ahead.planned_run(made, jax.devices(), "cpu"))
  for limit, lines in (
    (step.bytes["total"] - 1, ("of 8 rows a device does not fit", "--config.train.microbatches=2\n")),
    (1_000, ("No number of microbatches fits", "--config.mesh.fsdp=-1")),
  ):
    small = cpus._replace(chip=cpus.chip._replace(hbm_bytes=limit))
    compile_ahead.print_plan(made, small, name="mlm")
    printed = capsys.readouterr().out
    assert all(line in printed for line in lines), printed


def test_without_the_compiler_of_a_machine_the_formulas_say_what_it_needs(capsys):
  with mock.patch.object(chips, "is_installed", return_value=False):
    compile_ahead.print_plan(get_config("mlm"), chips.parse("v5e:2x4"), name="mlm")
  printed = capsys.readouterr().out
  assert (
    "-r requirements-plan.txt" in printed
    and "half of the peak, not measured" in printed
    and "of 16.00 GiB: fits" in printed
  )


def test_what_is_refused(capsys):
  flags = ["--config=tests/pretrain/small_run.py:mlm", "--plan=cpu:2"]
  for more, word in (([], "  --dry_run"), (["--dry_run", "--config.mesh.data=4"], "mesh.data=4")):
    with pytest.raises(SystemExit) as ended:
      main.main([*flags, *more])
    assert ended.value.code == 2 and word in capsys.readouterr().err
