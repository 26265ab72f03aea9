"""The command where some checkpoints lack what an analysis needs: it is made of the others, twice alike."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from data import manifest
from lab.analysis import request
from lab.analysis.__main__ import main
from pretrain.checkpoints.checkpoint import load_params
from pretrain.checkpoints.saved_model import save_params
from tests.pretrain import small_run

_STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"


def _annotated(folder: pathlib.Path) -> None:
  """A task of edge probing, and STS-B without a pair of score 5."""
  (folder / "edges").mkdir()
  targets = [{"span1": [at, at + 1], "label": label} for at, label in enumerate("xyz")]
  for split in ("train", "test"):
    (folder / "edges" / f"t.{split}.jsonl").write_text(json.dumps({"text": "ba ke fi", "targets": targets}))
  (folder / "STS-B").mkdir()
  (folder / "STS-B" / "dev.tsv").write_text(f"{_STSB}\n{'0	' * 7}ba ke\tba fi\t4.8\n")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, finished, small_records) -> list[pathlib.Path]:
  """What the command writes, twice, of runs with every head and with that of masked LM, and of an import."""
  folder = tmp_path_factory.mktemp("checkpoints")
  for name in ("every", "masked"):
    shutil.copytree(finished, folder / name, ignore=shutil.ignore_patterns("1", "2", "4"))
  shutil.rmtree(folder / "every" / "checkpoints")
  config = small_run.small_config("union", small_records, {"objectives.scl.head": "projection"})
  params = jax.eval_shape(small_run.small_run(config).recipe.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), params)
  meta = {"config": config.to_dict(), "vocabulary_digest": manifest.read(small_records).vocabulary.digest}
  save_params(folder / "every", params, meta, step=6)
  trained, kept = load_params(finished)
  save_params(folder / "imported", {"encoder": trained["encoder"]}, kept | {"source": {}}, step=0)
  (folder / "data").mkdir()
  _annotated(folder / "data")
  checkpoints = ",".join(str(folder / name) for name in ("every", "masked", "imported"))
  flags = [f"--checkpoints={checkpoints}", f"--data={folder / 'data'}", "--rows=16", "--batch_size=8"]
  with pytest.MonkeyPatch.context() as patch:
    first = jax.devices()[:1]
    for name in ("devices", "local_devices"):
      patch.setattr(jax, name, lambda *_: first)
    for output in ("first", "second"):
      request._opened.cache_clear()
      assert main([*flags, f"--output={folder / output}"]) == 0
  return [folder / "first", folder / "second"]


def test_the_same_command_twice_gives_the_same_numbers(outputs):
  first, second = outputs
  names = sorted(path.name for path in first.glob("*.json"))
  assert {"blocks.json", "cases.json", "cosines.json", "detection.json", "edges.json"} < {*names}
  assert names == sorted(path.name for path in second.glob("*.json"))
  for name in names:
    assert (first / name).read_text() == (second / name).read_text(), name


# Of each analysis the checkpoints that it is made of; none where it is skipped.
@pytest.mark.parametrize(
  ("analysis", "made_of"),
  [
    ("cosines", {"every", "masked"}),
    ("blocks", {"every", "masked"}),
    ("edges", {"every", "masked", "imported"}),
    ("detection", {"every"}),
    ("curricula", {"every"}),
    ("correction", {"every"}),
    ("mixture", set()),
    ("generator", set()),
    ("cases", {"every"}),
    ("efficiency", {"every", "masked"}),
  ],
)
def test_a_checkpoint_that_lacks_what_an_analysis_needs_is_left_out_with_a_line(outputs, analysis, made_of):
  listed = {row["analysis"]: row for row in json.loads((outputs[0] / "analyses.json").read_text())["rows"]}
  what = listed[analysis]["what"]
  if not made_of:
    assert what.startswith("skipped: needs ") and not (outputs[0] / f"{analysis}.json").exists()
    return
  written = json.loads((outputs[0] / f"{analysis}.json").read_text())
  assert {row["checkpoint"] for row in written["rows"]} == made_of
  for name in {"every", "masked", "imported"} - made_of:
    (note,) = (note for note in written["notes"] if note.startswith(f"Made without {name}: this needs "))
    assert note.removesuffix(".") in what and note.count(name) <= 2
  assert what.count("Made without") == 3 - len(made_of)


def test_a_note_says_whether_the_file_of_similar_pairs_lacks_or_its_pairs_of_score_5(outputs):
  notes = json.loads((outputs[0] / "cosines.json").read_text())["notes"]
  assert "No similar pairs: glue/STS-B in --data has none of score 5." in notes
