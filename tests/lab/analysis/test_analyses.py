"""The command of analyses: made of the checkpoints that have what it needs; bad data and flags refused."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from data import manifest
from data.errors import DataError
from lab.analysis import edges, request
from lab.analysis.__main__ import main
from pretrain.checkpoints.checkpoint import load_params
from pretrain.checkpoints.saved_model import save_params
from tests.pretrain import small_run

_STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"


def _annotated(folder: pathlib.Path) -> None:
  """A task of edge probing, and STS-B without a pair of score 5."""
  (folder / "edges").mkdir(parents=True)
  targets = [{"span1": [at, at + 1], "label": label} for at, label in enumerate("xyz")]
  for split in ("train", "test"):
    (folder / "edges" / f"t.{split}.jsonl").write_text(json.dumps({"text": "ba ke fi", "targets": targets}))
  (folder / "STS-B").mkdir()
  (folder / "STS-B" / "dev.tsv").write_text(f"{_STSB}\n{'0	' * 7}ba ke\tba fi\t4.8\n")


@pytest.fixture(scope="module")
def output(tmp_path_factory, finished, small_records) -> pathlib.Path:
  """What the command writes of runs with every head and with that of masked LM, and of an import."""
  folder = tmp_path_factory.mktemp("checkpoints")
  shutil.copytree(finished, folder / "masked", ignore=shutil.ignore_patterns("1", "2"))
  config = small_run.small_config("union", small_records, {"objectives.scl.head": "projection"})
  params = jax.eval_shape(small_run.small_run(config).recipe.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), params)
  meta = {"config": config.to_dict(), "vocabulary_digest": manifest.read(small_records).vocabulary.digest}
  save_params(folder / "every", params, meta, step=6)
  trained, kept = load_params(finished)
  save_params(folder / "imported", {"encoder": trained["encoder"]}, kept | {"source": {}}, step=0)
  _annotated(folder / "data")
  checkpoints = ",".join(str(folder / name) for name in ("every", "masked", "imported"))
  flags = [f"--checkpoints={checkpoints}", f"--data={folder / 'data'}", "--rows=16", "--batch_size=8"]
  with pytest.MonkeyPatch.context() as patch:
    first = jax.devices()[:1]
    for name in ("devices", "local_devices"):
      patch.setattr(jax, name, lambda *_: first)
    request._opened.cache_clear()
    assert main([*flags, f"--output={folder / 'output'}"]) == 0
  return folder / "output"


# Of each analysis the checkpoints that it is made of; none where it is skipped.
MADE_OF = {
  "cosines": {"every", "masked"},
  "edges": {"every", "masked", "imported"},
  "detection": {"every"},
  "correction": {"every"},
  "mixture": set(),
  "generator": set(),
}


PAIR = ("detection", "correction")


def test_a_checkpoint_that_lacks_what_an_analysis_needs_is_left_out_with_a_line(output):
  listed = {row["analysis"]: row for row in json.loads((output / "analyses.json").read_text())["rows"]}
  assert listed.keys() == MADE_OF.keys()
  for analysis, made_of in MADE_OF.items():
    what = listed[analysis]["what"]
    assert what.count("Made without") == (3 - len(made_of) if made_of else 0), what
    if not made_of:
      assert what.startswith("skipped: ") and not (output / f"{analysis}.json").exists()
      continue
    written = json.loads((output / f"{analysis}.json").read_text())
    assert {row["checkpoint"] for row in written["rows"]} == made_of, analysis
    for name in {"every", "masked", "imported"} - made_of:
      (note,) = (note for note in written["notes"] if note.startswith(f"Made without {name}: "))
      assert note.removesuffix(".") in what
  cosines = json.loads((output / "cosines.json").read_text())
  assert cosines["rows"][0]["pairs"] == "random" and -4 <= cosines["rows"][0]["uniformity"] <= 0
  assert "No similar pairs: glue/STS-B in --data has none of score 5." in cosines["notes"]
  (all_tokens, *_), copies = (json.loads((output / f"{name}.json").read_text())["rows"] for name in PAIR)
  # The copy head is the one that detects replaced tokens.
  right = sum(row["copy"] * row["count"] for row in copies)
  assert right == pytest.approx(all_tokens["right"] * all_tokens["count"])
  assert (output / "cosines.svg").is_file() and (output / "calibration.png").is_file()


def test_mistakes_are_one_line_and_nothing_is_written(tmp_path, capsys, finished):
  failures = []
  for flags, code, word in [
    (("--only=cosine",), 2, "'cosines'"),
    (("--rows=0",), 2, "--rows=0"),
    (("--data=nowhere",), 3, "--data=nowhere"),
    (("--checkpoints=",), 2, "--checkpoints"),
    ((f"--checkpoints={tmp_path}",), 3, "no checkpoint in"),
    (("--only=mixture",), 3, "mixture"),
  ]:
    found = main([f"--checkpoints={finished}", f"--output={tmp_path / 'out'}", *flags])
    error = capsys.readouterr().err
    if found != code or word not in error or (tmp_path / "out").exists():
      failures.append(f"{flags}: {found} {error}")
  assert not failures, "\n".join(failures)


_ROW = json.dumps({"text": "ba ke", "targets": [{"span1": [0, 1], "label": "x"}]})
_NONE = json.dumps({"text": "ba ke", "targets": []})
_WORDS = "1\tba\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tke\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
_ROOT = "1\tke\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"
_TASK, _UD = "edges/t.{}.jsonl", "UD_English-EWT/x-ud-{}.conllu"


def _folder(tmp_path, pattern: str, parts: dict[str, str]):
  for split, text in parts.items():
    path = tmp_path / pattern.format(split)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return tmp_path


def test_annotated_data_that_say_too_little_are_refused_by_file(tmp_path):
  failures = []
  for number, (pattern, train, test, word) in enumerate(
    [
      (_TASK, "", _ROW, "t.train.jsonl"),
      (_TASK, _ROW, "", "t.test.jsonl"),
      (_TASK, f"{_NONE}\n{_ROW}", _ROW, "t.train.jsonl"),  # its first sentence has no target
      (_TASK, _ROW, _NONE, "t.test.jsonl"),
      (_UD, "", _WORDS, "x-ud-train.conllu"),
      (_UD, _WORDS, "# a comment\n", "x-ud-test.conllu"),
      (_UD, _WORDS, _ROOT, "x-ud-test.conllu"),
    ]
  ):
    folder = _folder(tmp_path / str(number), pattern, {"train": train, "test": test})
    try:
      failures.append(f"{number}: {edges.find(folder, 1)}")
    except DataError as error:
      failures += [] if word in str(error) else [f"{number}: {error}"]
  assert not failures, "\n".join(failures)
