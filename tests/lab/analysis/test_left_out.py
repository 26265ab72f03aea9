"""The command where some checkpoints lack what an analysis needs: it is made of the others, twice alike."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from data import manifest, vocabulary
from lab.analysis import request, space
from lab.analysis.__main__ import main
from pretrain.checkpoints.checkpoint import load_params
from pretrain.checkpoints.saved_model import save_params
from pretrain.models import heads
from tests.pretrain import small_run

_STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"


def _annotated(folder: pathlib.Path, records: pathlib.Path) -> None:
  """Pairs of words of one piece, a task of edge probing, and STS-B without a pair of score 5."""
  words = vocabulary.load(records / "vocabulary")
  single = [word for word in "bdfgklmnprstvz" if len(words.encode(word)) == 1]
  (folder / "word_pairs.tsv").write_text(f"{single[0]}\t{single[1]}\n")
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
  _annotated(folder / "data", small_records)
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
    ("plane", set()),
    ("blocks", {"every", "masked"}),
    ("words", {"every", "masked"}),
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


def test_vectors_can_be_those_of_the_head_and_random_pairs_those_of_sentences(outputs, tmp_path, capsys):
  folder, texts = outputs[0].parent, ("ba ke fi", "fi do", "ke ba ba do")
  lines = [f"{'0	' * 7}{first}\t{second}\t5.0" for first, second in zip(texts, texts[::-1])]
  for place in (tmp_path / "STS-B", tmp_path / "glue" / "STS-B"):  # a file in both places is read once
    place.mkdir(parents=True)
    (place / "dev.tsv").write_text("\n".join([_STSB, *lines]))
  asked = request.Request([str(folder / "every")], tmp_path, rows=16, batch_size=8, pooling="head")
  flags = [
    f"--data={tmp_path}",
    "--only=cosines",
    "--pooling=head",
    "--random_pairs=sentences",
    "--batch_size=8",
  ]
  with pytest.MonkeyPatch.context() as patch:
    first = jax.devices()[:1]
    for name in ("devices", "local_devices"):
      patch.setattr(jax, name, lambda *_: first)
    ((name, model, blocks),) = asked.encoders()
    inputs = [{"ids": row} for row in blocks]
    of_head = space.sentence_embedder(name, model, asked)
    plain = space.sentence_embedder(name, model, dataclasses.replace(asked, pooling="cls")).vectors(inputs)
    head = load_params(folder / "every")[0]["heads"]["scl"]
    expected = heads.apply_transform(head, model.encoder.config, plain)
    np.testing.assert_allclose(of_head.vectors(inputs), expected, rtol=1e-5, atol=1e-6)
    pair = space.pairs_of(of_head, None, space.similar_pairs(asked))["random"]
    both = f"--checkpoints={folder / 'every'},{folder / 'masked'}"
    assert main([*flags, both, f"--output={tmp_path / 'out'}"]) == 0
    assert main([*flags, f"--checkpoints={folder / 'masked'}", f"--output={tmp_path / 'none'}"]) == 3
  assert "cosines needs a head of sequence contrast, which masked lacks" in capsys.readouterr().err
  written = json.loads((tmp_path / "out" / "cosines.json").read_text())
  random, similar = written["rows"]
  assert random["mean"] == pytest.approx(np.einsum("nw,nw->n", *pair).mean(), abs=1e-6)
  assert (random["checkpoint"], similar["count"]) == ("every", 3)
  assert (
    "what a head makes of [CLS]" in written["notes"][0] and "different first sentences" in written["notes"][0]
  )
