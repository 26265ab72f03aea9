"""The demo at a size of seconds: what it says, what it reuses, what it refuses."""

import contextlib
import io
import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from configs import demo as demo_config
from pretrain import demo
from pretrain.checkpoints.resume import flatten
from pretrain.reading import prepared
from pretrain.settings.run import reading_settings
from tests.pretrain import small_run
from tests.pretrain.export.refusals import failing_commands


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
  """Flags, workdir and output of a demo that trained: six steps of `small_run`'s masked LM."""
  workdir = tmp_path_factory.mktemp("demo") / "work"
  small = flatten(small_run.small_config("mlm", small_records).to_dict())
  usual = flatten(demo_config.get_config().to_dict())
  changes = {name: value for name, value in small.items() if value != usual[name]}
  flags = [*(f"--config.{name}={_text(value)}" for name, value in changes.items()), f"--workdir={workdir}"]
  code, shown, _ = start(flags)
  assert code == 0
  return flags, workdir, shown


def _kept(workdir: pathlib.Path) -> dict[pathlib.Path, int]:
  """The files of the run and when they were written; reports are written again."""
  files = [path for path in workdir.rglob("*") if path.is_file() and path.parent.name != "reports"]
  return {path: path.stat().st_mtime_ns for path in files if path.name != "report.html"}


def test_a_second_start_trains_nothing_and_shows_the_same_figures(first_start, tmp_path):
  flags, workdir, shown = first_start
  assert f"Page:        {workdir}/report.html" in shown and "pretrain.main --config=" in shown
  assert "\x1b" not in shown and "\r" not in shown  # a pipe gets no control codes
  before = _kept(workdir)
  code, again, said = start(flags)
  assert code == 0 and f"{workdir} is finished: step 6 of 6" in said
  assert "Compiling" not in said  # the training step is not even compiled
  of_model = [text[text.index("What was learned") : text.index("Page:")] for text in (again, shown)]
  assert of_model[0] == of_model[1] and _kept(workdir) == before
  copy = shutil.copytree(workdir, tmp_path / "copy")
  (copy / "metrics.jsonl").unlink()
  code, _, err = start([*flags[:-1], f"--workdir={copy}"])
  assert code == 3 and f"\n  rm -r {copy}" in err


def test_the_figures_are_those_of_the_metrics_and_worked_by_hand(small_records, first_start):
  workdir = first_start[1]
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  held_out = {line["step"]: line for line in lines if "eval/loss" in line}
  loss, restored = rows = json.loads((workdir / "reports" / "learned.json").read_text())["rows"]
  for row, name in zip(rows, ("eval/masked_lm_loss", "eval/masked_lm_accuracy"), strict=True):
    assert (row["first"], row["last"]) == (held_out[0][name], held_out[6][name])
  # The masked tokens of the evaluation, from the recipe itself: special ones may be chosen here.
  config = small_run.small_config("mlm", small_records)
  run, heldout, targets = small_run.small_run(config), prepared.open_heldout(reading_settings(config))[0], []
  for index in range(config.train.eval_batches):
    ids = heldout.rows(8 * index, 8 * index + 8)
    masked = run.eval_batch_of(jnp.asarray(ids), jnp.int32(index), jnp.float32(1))
    targets += ids[np.asarray(masked.corrupted.masking.selected)].tolist()
  counts = np.load(small_records / "unigram.npy") + 1.0
  counts[run.recipe.tokens.pad] = 0.0
  losses = [-np.log(counts[target] / counts.sum()) for target in targets]
  assert loss["trivial"] == pytest.approx(np.mean(losses))
  assert restored["trivial"] == max(map(targets.count, targets)) / len(targets)


def test_the_verdict_knows_which_way_is_better():
  for last, trivial, is_loss, said in (
    (6.0, 6.5, True, "better by 0.500"),
    (6.5, 6.0, True, "worse by 0.500"),
    (0.30, 0.05, False, "better by 25.0 points"),
    (0.01, 0.05, False, "worse by 4.0 points"),
    (0.4230, 0.4231, True, "the same"),
  ):
    assert demo.verdict({"last": last, "trivial": trivial, "is_loss": is_loss}) == said


def test_flags_it_cannot_use_are_refused(capsys):
  rows = [
    ("--dry_run", 2, "--dry_run"),
    ("--config=configs/coco_lm_base.py:tiny", 2, "--config=configs/coco_lm_base.py:tiny"),
    ("--config.objectives.mlm.positions=all", 2, "objectives.mlm.positions"),
    ("--config.objectives.mlm.weight=0", 2, "objectives.mlm.weight"),
    ("--config.train.eval_batches=0", 2, "train.eval_batches"),
    ("--workdir=gs://bucket/demo", 2, "--workdir=gs://bucket/demo"),
    ("--config.model.hidden_sise=64", 2, "hidden_size"),
  ]
  assert not failing_commands(rows, lambda flag: demo.main([flag]), capsys)
  root = pathlib.Path(demo.__file__).resolve().parents[1]
  assert (root / demo.NEXT.partition(":")[0]).is_file()
  assert (root / demo.CONFIG).resolve() == pathlib.Path(demo_config.__file__).resolve()
