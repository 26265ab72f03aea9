"""The demo at a size of seconds: what it says, what it reuses, what it refuses."""

import contextlib
import io
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import demo as demo_config
from pretrain.checkpoints.resume import flatten
from pretrain.demo import __main__ as demo
from pretrain.demo import figures as demo_figures
from pretrain.demo import progress as demo_progress
from pretrain.demo.figures import Row
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests.pretrain import small_run


def small_flags(records, workdir) -> list[str]:
  """Flags that make the demo a run of six steps of `small_run`'s masked LM on small records."""
  small = flatten(small_run.small_config("mlm", records).to_dict())
  usual = flatten(demo_config.get_config().to_dict())
  changes = {name: value for name, value in small.items() if value != usual[name]}
  return [*(f"--config.{name}={_text(value)}" for name, value in changes.items()), f"--workdir={workdir}"]


def _text(value) -> str:
  return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def start(flags: list[str]) -> tuple[int, str, str]:
  """Exit code, stdout and stderr of the demo in this process."""
  out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), small_run.devices(1):
    code = demo.main(flags)
  out.seek(0)
  return code, out.read(), err.getvalue()


@pytest.fixture(scope="module")
def first_start(tmp_path_factory, small_records):
  """Flags, workdir and output of a demo that trained."""
  workdir = tmp_path_factory.mktemp("demo") / "work"
  flags = small_flags(small_records, workdir)
  code, shown, _ = start(flags)
  assert code == 0
  return flags, workdir, shown


def figures_of(shown: str) -> str:
  """The part of the output that is about the model."""
  return shown[shown.index("What was learned") : shown.index("Seconds by stage")]


def test_the_output_has_everything_a_newcomer_is_promised(first_start):
  _, workdir, shown = first_start
  expected = ["loss of masked tokens", "masked tokens restored", "token frequencies", "guess"]
  expected += [f"{workdir}/checkpoints/6", f"{workdir}/report.html"]
  expected += ["pretrain.main --config=", "compile", "total"]
  assert not [text for text in expected if text not in shown]
  page = (workdir / "report.html").read_text()
  assert all(title in page for title in ("What was learned", "Masked tokens of held-out text"))


def test_a_pipe_gets_no_control_codes_and_no_wide_lines(first_start):
  lines = first_start[2].splitlines()
  assert not [line for line in lines if "\x1b" in line or "\r" in line]
  # Commands and paths are left whole so that they can be copied.
  assert not [line for line in lines if len(line) > 100 and "python" not in line and "/" not in line]


def test_a_second_start_trains_nothing_and_shows_the_same_figures(first_start):
  flags, workdir, shown = first_start
  before = {path: path.stat().st_mtime_ns for path in _kept(workdir)}
  code, again, said = start(flags)
  assert code == 0
  assert f"{workdir} is finished" in said
  assert f"remove {workdir} to train again" in said
  assert "the step in" not in said  # the training step is not even compiled
  assert figures_of(again) == figures_of(shown)
  assert {path: path.stat().st_mtime_ns for path in _kept(workdir)} == before


def _kept(workdir: pathlib.Path) -> list[pathlib.Path]:
  """The files of the run; reports are written again."""
  files = [path for path in workdir.rglob("*") if path.is_file()]
  return [path for path in files if path.parent.name != "reports" and path.name != "report.html"]


def test_first_and_last_values_are_those_of_the_metrics_file(first_start):
  workdir = first_start[1]
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  held_out = {line["step"]: line for line in lines if "eval/loss" in line}
  rows = json.loads((workdir / "reports" / "learned.json").read_text())["rows"]
  for row, name in zip(rows, ("eval/masked_lm_loss", "eval/masked_lm_accuracy"), strict=True):
    assert (row["first"], row["last"]) == (held_out[0][name], held_out[6][name])


def test_the_trivial_answers_are_worked_by_hand(small_records, first_start):
  # The masked tokens of the evaluation, from the recipe itself.
  config = small_run.small_config(
    "mlm", small_records
  )  # special tokens may be chosen, other than in the demo
  run = small_run.small_run(config)
  heldout = prepared.open(reading_settings(config)).heldout
  targets = []
  for index in range(config.train.eval_batches):
    ids = heldout.rows(8 * index, 8 * index + 8)
    masked = run.eval_batch_of(jnp.asarray(ids), jnp.int32(index), jnp.float32(1))
    targets += ids[np.asarray(masked.corrupted.masking.selected)].tolist()
  counts = np.load(small_records / "unigram.npy") + 1.0
  counts[run.recipe.tokens.pad] = 0.0
  loss, restored = json.loads((first_start[1] / "reports" / "learned.json").read_text())["rows"]
  assert loss["trivial"] == pytest.approx(
    np.mean([-np.log(counts[target] / counts.sum()) for target in targets])
  )
  assert restored["trivial"] == max(map(targets.count, targets)) / len(targets)


def test_examples_are_tokens_that_were_chosen(first_start):
  rows = json.loads((first_start[1] / "reports" / "guesses.json").read_text())["rows"]
  assert rows
  assert all(" ___" in row["text"] and 0 < row["probability"] < 1 for row in rows)


@pytest.mark.parametrize(
  ("last", "trivial", "is_loss", "said"),
  [
    (6.0, 6.5, True, "better by 0.500"),
    (6.5, 6.0, True, "worse by 0.500"),
    (0.30, 0.05, False, "better by 25.0 points"),
    (0.01, 0.05, False, "worse by 4.0 points"),
    (0.4230, 0.4231, True, "the same"),
  ],
)
def test_the_verdict_knows_which_way_is_better(last, trivial, is_loss, said):
  row = Row("a", 0.0, last, trivial, "b", is_loss)
  assert demo_figures.verdict(row) == said


@pytest.mark.parametrize(
  ("flag", "named"),
  [
    ("--dry_run", "--dry_run"),
    ("--config=configs/coco_lm_tiny.py", "--config=configs/coco_lm_tiny.py"),
    ("--config.objectives.mlm.positions=all", "objectives.mlm.positions"),
    ("--config.train.eval_batches=0", "train.eval_batches"),
    ("--workdir=gs://bucket/demo", "--workdir=gs://bucket/demo: expected a path, found an address"),
    ("--config.model.hidden_sise=64", "hidden_size"),
  ],
)
def test_flags_it_cannot_use_are_refused_in_one_line(flag, named):
  code, _, err = start([flag])
  assert code == 2
  assert named in err
  assert all(line.startswith("  ") for line in err.splitlines()[1:])


def test_a_workdir_without_its_metrics_is_an_error_of_one_line(first_start, tmp_path):
  flags, workdir, _ = first_start
  copy = shutil.copytree(workdir, tmp_path / "copy")
  (copy / "metrics.jsonl").unlink()
  code, _, err = start([*flags[:-1], f"--workdir={copy}"])
  assert code == 3
  (line,) = [line for line in err.splitlines() if line.startswith("error:")]
  assert "step 0" in line and str(copy) in line


def test_compilation_is_counted_only_within():
  with demo_progress.Compilation() as compilation:
    jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(3))
  within = compilation.seconds
  assert within > 0
  jax.jit(lambda x: x * 4.75 + 2)(jnp.ones(3))
  assert compilation.seconds == within


def test_the_next_command_names_a_config_that_exists():
  root = pathlib.Path(demo.__file__).resolve().parents[2]
  assert (root / demo.NEXT).is_file()
  assert (root / demo.CONFIG).resolve() == pathlib.Path(demo_config.__file__).resolve()
