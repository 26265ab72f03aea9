"""The command: a table for what there is data for, the same numbers every time, and mistakes of one line."""

import json
import pathlib
import random

import jax
import numpy as np
import pytest

from data.errors import DataError
from lab.analysis import probe

WORDS = {"NOUN": ("ba", "dogo", "lumi"), "VERB": ("ke", "zore"), "DET": ("fi",)}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
  """Sentences whose tags follow from their words, relations, and STS-B."""
  folder, draw = tmp_path_factory.mktemp("annotated"), random.Random(0)
  (folder / "UD_English-EWT").mkdir()
  for split, number in (("train", 40), ("test", 20)):
    lines = []
    for _ in range(number):
      tags = ("DET", "NOUN", "VERB", "NOUN")
      for at, (tag, head, relation) in enumerate(zip(tags, (2, 3, 0, 3), ("det", "nsubj", "root", "obj")), 1):
        lines.append(f"{at}\t{draw.choice(WORDS[tag])}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
      lines.append("")
    (folder / "UD_English-EWT" / f"x-ud-{split}.conllu").write_text("\n".join(lines))
  (folder / "SemEval2010_task8").mkdir()
  for name in ("TRAIN_FILE", "TEST_FILE_FULL"):
    texts = [f'{n}\t"<e1>{w}</e1> ke <e2>ba</e2>"\n{w}-ba\n\n' for n, w in enumerate(("dogo", "lumi") * 8)]
    (folder / "SemEval2010_task8" / f"{name}.TXT").write_text("".join(texts))
  return folder


@pytest.fixture(scope="module", autouse=True)
def on_one_device():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    yield


def test_figures_stand_beside_those_of_the_untrained_encoder_and_of_no_model(
  finished, data, tmp_path, capsys
):
  names = "--only=pos,relation"
  for output in ("first", "second"):
    flags = [f"--checkpoint={finished}", f"--data={data}", f"--output={tmp_path / output}", names]
    assert probe.main(flags) == 0
  first, second = ((tmp_path / output / "probe.json").read_text() for output in ("first", "second"))
  assert first == second
  found = json.loads(first)
  rows = {(row["probe"], row["cases"], row["read"]): row for row in found["rows"]}
  model = f"{finished} step 6"
  row = rows["part of speech", "all words", "tokens"]
  assert (
    row["count"] == 80
    and row["no model"] == 1.0
    and 0.9 < row[model] <= 1.0
    and 0.9 < row["untrained"] <= 1.0
  )
  assert rows["relation", "all pairs", "last"]["no model"] == 1.0
  assert {read for name, _, read in rows if name == "relation"} == {"tokens", "middle", "last"}
  assert any(
    note.startswith(f"{model}: figures above ") and "those of untrained" in note for note in found["notes"]
  )
  captured = capsys.readouterr()
  assert "Probes of frozen encoders" in captured.out and "part of speech" in captured.err
  assert (tmp_path / "first" / "probe.md").is_file() and (tmp_path / "first" / "probe.csv").is_file()


@pytest.mark.parametrize(
  ("flags", "code", "line"),
  [
    (("--only=poss",), 2, "unknown probe 'poss'; did you mean 'pos'? Known: pos, dependency"),
    (("--only=sentiment",), 3, "sentiment needs glue/SST-2/train.tsv and dev.tsv, plain or .gz"),
    (("--pairs=0",), 2, "--pairs=0: expected at least 1"),
    (("--data=nowhere",), 3, "nowhere: no data for any probe; name a folder with any of UD_English-EWT"),
    (("--checkpoint=nowhere", "--only=pos"), 3, "nowhere"),
    (("--checkpoint=",), 2, "--checkpoint is empty; name a checkpoint"),
  ],
)
def test_a_mistake_is_one_line(finished, data, tmp_path, capsys, flags, code, line):
  given = [f"--checkpoint={finished}", f"--data={data}", f"--output={tmp_path / 'out'}", *flags]
  assert probe.main(given) == code
  error, *ways = capsys.readouterr().err.strip().splitlines()
  assert line in error and all(way.startswith("  --") for way in ways)
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("flags", "output"),
  [
    (["--checkpoint=runs/a,runs/b"], "probe_comparison"),
    (["--checkpoint=runs/a/checkpoints/30/"], "{here}/runs/a/probe_30"),
    (["--checkpoint=checkpoints"], "{here}/probe"),
    (["--checkpoint=s3://bucket/a/"], "s3://bucket/a/probe"),
    (["--checkpoint=s3://bucket/a/checkpoints/30"], "s3://bucket/a/probe_30"),
    (["--checkpoint=runs/a", "--output=there"], "there"),
  ],
)
def test_without_an_output_the_table_is_beside_the_first_checkpoint(flags, output, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  asked = []
  monkeypatch.setattr(probe, "_run", asked.append)
  monkeypatch.setattr(probe.command, "run_with_output", lambda parse, function, argv: function(parse(argv)))
  probe.main([*flags, "--data=annotated"])
  assert asked[0].output == output.format(here=tmp_path)


def test_what_has_no_data_is_skipped_with_a_sentence(data):
  from lab.analysis import probe_sets

  found, skipped = probe_sets.find(probe_sets.Folder(data, 10, 5), [])
  assert [one.name for one in found] == ["part of speech", "dependency", "relation"]
  assert skipped[0] == "Skipped, because its data are missing: sentiment (glue/SST-2/train.tsv and dev.tsv)."


def test_a_file_of_pairs_named_as_those_of_the_treebank_is_kept_beside_them(data, tmp_path, monkeypatch):
  from lab.analysis import probe_sets

  pair = probe_sets.annotated.MinimalPair(("a",), ("b",))
  monkeypatch.setattr(probe_sets.annotated, "minimal_pairs", lambda folder: {"agreement": [pair]})
  monkeypatch.setattr(probe_sets.annotated, "agreement_pairs", lambda sentences: [pair, pair])
  found, _ = probe_sets.find(probe_sets.Folder(data, 10, 5), ["pairs"])
  assert {one.cases: len(one.pairs) for one in found} == {"agreement": 1, "agreement of the treebank": 2}


def test_sick_is_read_as_it_is_released_and_shared_words_have_its_order(tmp_path):
  from lab.analysis import probe_sets

  (tmp_path / "SICK").mkdir()
  file = tmp_path / "SICK" / "SICK_test_annotated.txt"
  rows = [("ba ke dogo", "ba ke dogo", 4.9), ("ba ke dogo", "ba zore lumi", 2.5), ("ba ke", "fi lumi", 1)]
  lines = [f"{n}\t{first}\t{second}\t{score}\tNEUTRAL" for n, (first, second, score) in enumerate(rows)]
  header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
  file.write_text("\n".join([header, *lines]))
  (found,), _ = probe_sets.find(probe_sets.Folder(tmp_path, 10, 5), ["similarity"])
  (figure,) = found.without_model()
  assert (figure.cases, figure.measure, figure.count) == ("SICK test", "Spearman", 3)
  assert figure.value == pytest.approx(1)
  file.write_text("\n".join([header, lines[0].replace("4.9", "high")]))
  with pytest.raises(DataError, match=r"SICK_test_annotated.txt:2: score 'high', expected a number from 0"):
    probe_sets.find(probe_sets.Folder(tmp_path, 10, 5), ["similarity"])


def test_a_probe_that_is_asked_twice_is_explained_once():
  from lab.analysis import probe_table, probes

  nothing = ([], np.zeros(0))
  asked = [probes.Sentiment(cases, nothing, nothing) for cases in ("SST-2 dev", "SST-2 dev from 673")]
  notes = probe_table.report(asked, {probes.WITHOUT: []}, {}, []).notes
  assert len([note for note in notes if note.startswith("Sentiment: ")]) == 1
