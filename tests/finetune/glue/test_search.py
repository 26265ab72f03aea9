"""GLUE: sentences as examples, logits as scores, the report, and the predictions for the leaderboard."""

import collections
import csv
import dataclasses
import gzip
import io
import json
import pathlib
import types
import zipfile

import numpy as np
import pytest
import rich.console

from configs import finetune_glue
from data import tables, vocabulary
from data.errors import DataError, StorageError
from data.glue.tasks import Split
from finetune.glue import predictions, search
from finetune.glue import predictions as glue_predictions
from finetune.glue import search as glue
from finetune.glue import task as glue_task
from finetune.glue.predictions import Predictions
from finetune.papers import glue_metrics, protocols
from finetune.papers.protocols import Cell
from finetune.search.examples import Encoding
from finetune.search.results import Evaluation, Record
from finetune.search.search import Chosen
from tests.finetune.glue import small_glue


@pytest.fixture(scope="module")
def words(small_encoder_run):
  return vocabulary.load(small_encoder_run / "vocabulary")


def _split(first, second=None, labels=None, **changes) -> Split:
  labels = None if labels is None else np.asarray(labels)
  ids = [str(row) for row in range(len(first))]
  return Split(
    first, second, labels, ids, **({"dropped": 0, "source": "made", "is_official": False} | changes)
  )


def _encoding(words, **changes) -> Encoding:
  return Encoding(words, **({"max_length": 16, "num_buckets": 2, "multiple": 4} | changes))


def test_pairs_have_the_separators_of_the_vocabulary_and_the_longer_side_is_cut(words):
  split = _split(["good", "a film was very good"], ["bad", "bad"], np.asarray([1, 0], np.int32))
  examples, cut = _encoding(words, max_length=7).examples(split, is_regression=False)
  special = words.special_ids
  good, bad = (words.encode(word)[0] for word in ("good", "bad"))
  np.testing.assert_array_equal(examples.ids[0], [special.cls, good, special.sep, bad, special.sep])
  expected = [special.cls, *words.encode("a film was"), special.sep, bad, special.sep]
  np.testing.assert_array_equal(examples.ids[1], expected)
  assert cut == 1
  assert examples.fields["labels"].dtype == np.int32


def test_scores_of_similarity_become_targets_by_the_divisor(words):
  split = _split(["good"] * 3, ["bad"] * 3, [0.0, 2.5, 5.0])
  examples, _ = _encoding(words, divisor=5.0).examples(split, is_regression=True)
  np.testing.assert_allclose(examples.fields["labels"], [0.0, 0.5, 1.0])
  assert examples.fields["labels"].dtype == np.float32


def _data(words, task="sst2", count=11) -> glue_task.GlueData:
  random = np.random.default_rng(0)
  texts = [" ".join(random.choice(small_glue.WORDS, random.integers(1, 12))) for _ in range(count)]
  labels = np.arange(count) % 2
  dev = _split(texts, labels=labels.astype(np.int32))
  return glue_task.from_splits(
    task, _split(texts, labels=labels.astype(np.int32)), {"dev": dev}, _encoding(words)
  )


def test_every_example_counts_once_at_any_batch_size(words):
  data = _data(words)
  # A model that knows all, one that knows nothing, and one with outputs that are not finite.
  for batch_size, sign, accuracy in ((1, 1.0, 1.0), (4, -1.0, 0.0), (64, 1.0, 1.0), (64, np.nan, 0.0)):
    seen = []

    def outputs_of(batch, seen=seen, sign=sign):
      for ids, weight in zip(batch["ids"], batch["weights"]):
        if weight:
          seen.append(tuple(ids[ids != 0]))
      return sign * np.eye(2, dtype=np.float32)[batch["labels"]]

    assert glue.evaluate(data, outputs_of, batch_size=batch_size, pad_id=0) == {"accuracy": accuracy}
    assert sorted(seen) == sorted(tuple(ids) for ids in data.dev["dev"].examples.ids)


def test_the_digest_knows_texts_and_labels_and_dropped_and_cut_rows_are_told(words):
  same, other = _data(words), _data(words, count=10)
  assert same.digest == _data(words).digest != other.digest
  split = _split(["good", "bad"], labels=np.asarray([0, 1], np.int32))
  flipped = _split(["good", "bad"], labels=np.asarray([1, 1], np.int32))
  digests = {
    glue_task.from_splits("sst2", train, {"dev": dev}, _encoding(words)).digest
    for train, dev in ((split, split), (flipped, split), (split, flipped))
  }
  assert len(digests) == 3
  split = _split(["good " * 30, "bad"], labels=np.asarray([0, 1], np.int32), dropped=3)
  lines = glue_task.from_splits("sst2", split, {"dev": split}, _encoding(words)).lines
  assert any("6 rows dropped" in line for line in lines)
  assert "sst2: texts truncated to 16 tokens: 1 of train, 1 of dev" in lines


def test_mnli_without_its_mismatched_half_is_evaluated_on_the_matched_one(words, tmp_path):
  (tmp_path / "MNLI").mkdir()
  rows = [f"{row}\tgood film\tbad film\t{('neutral', 'entailment')[row % 2]}" for row in range(5)]
  for split in ("train", "dev"):
    text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n"
    (tmp_path / "MNLI" / f"{split}.subset.tsv").write_text(text, encoding="utf-8")
  config = finetune_glue.get_config()
  config.update({"tasks": "mnli", "data": {"directory": str(tmp_path)}})
  data = glue_task.load("mnli", str(tmp_path), _encoding(words))
  assert list(data.dev) == ["dev_matched"]
  assert any("no dev_mismatched split in" in line for line in data.lines)
  zeros = lambda batch: np.zeros((4, 3), np.float32)  # noqa: E731
  assert list(glue.evaluate(data, zeros, batch_size=4, pad_id=0)) == ["accuracy"]
  for asked, used in ((3, 3), (5, 5), (6, 5)):  # more rows than there are: all are used, and a line names it
    data = glue_task.load("mnli", str(tmp_path), _encoding(words), train_rows=asked)
    assert len(data.train.ids) == used
    assert any("data.train_rows=6" in line for line in data.lines) == (asked == 6)


def test_mnli_is_official_and_scored_with_both_halves(words):
  labels = np.asarray([0, 1], np.int32)
  split = _split(["good", "bad"], ["bad", "good"], labels, is_official=True)
  halves = {"dev_matched": split, "dev_mismatched": dataclasses.replace(split, labels=0 * labels)}
  whole = glue_task.from_splits("mnli", split, halves, _encoding(words))
  assert whole.is_official
  assert not glue_task.from_splits("mnli", split, {"dev_matched": split}, _encoding(words)).is_official
  first = lambda batch: np.eye(3, dtype=np.float32)[[0, 0]]  # noqa: E731
  scores = glue.evaluate(whole, first, batch_size=2, pad_id=0)
  assert scores == {"accuracy": 0.5, "accuracy_mm": 1.0}


CELL = Cell(32, 2e-5, 3, 0.0625)
MEDIAN = protocols.get("coco_lm", "base")


def record(task, values, others=None, *, protocol="coco_lm", cell=CELL):
  """A cell whose seeds score `values`; every other metric is the constant given."""
  metric = glue_metrics.main_metric(task, protocol)
  seeds = {seed: [Evaluation(5, 1.0, {metric: value} | (others or {}))] for seed, value in enumerate(values)}
  return Record(task, cell, metric, seeds)


def eight(value=0.5):
  """A record of each of the eight tasks; task number n scores value + n / 100."""
  return {task: [record(task, [value + n / 100])] for n, task in enumerate(glue_metrics.AVERAGED)}


def printed(made, width):
  console = rich.console.Console(file=io.StringIO(), width=width, highlight=False)
  made.print(console)
  return console.file.getvalue()  # pyright: ignore


def line_of(text, start):
  return next(line for line in text.splitlines() if line.startswith(start)).split()


def test_the_best_cell_is_chosen_and_summed_up():
  worse = record("rte", [0.9, 0.2, 0.1], cell=CELL._replace(epochs=2))
  made = search.make_report("x", MEDIAN, {"rte": [worse, record("rte", [0.25, 0.6, 0.5])]})
  row = made.rows[0]
  assert (row["value"], row["cell"], row["maximum"]) == (0.5, CELL.name, 0.6)
  shown = printed(made, 80)
  assert line_of(shown, "RTE") == ["RTE", "accuracy", "50.0", "18.0", "25.0", "60.0"]
  assert line_of(shown.split("all seeds")[1], "RTE") == ["RTE", CELL.name, "25.0", "60.0", "50.0"]


def test_the_average_is_of_eight_without_wnli_and_the_mismatched_half():
  records = eight() | {"wnli": [record("wnli", [0.0])]}
  records["mnli"] = [record("mnli", [0.5], {glue_metrics.MISMATCHED: 0.0})]
  made = search.make_report(
    "x", MEDIAN, records, references=glue_metrics.reference_rows("coco_lm_base", "coco_lm")
  )
  assert made.totals[0]["value"] == pytest.approx(0.535)
  assert line_of(printed(made, 80), "AVG of 8")[3:] == ["53.5", "87.2", "83.3", "85.5"]


def test_an_average_with_tasks_missing_is_not_given_and_they_are_named():
  records = eight()
  del records["rte"]
  records["cola"] = []
  made = search.make_report("x", MEDIAN, records)
  assert made.totals[0]["value"] is None
  shown = printed(made, 120)
  assert line_of(shown, "AVG of 8")[3] == "-" and "No AVG: CoLA, RTE missing" in shown


def test_the_papers_score_stands_beside_the_same_metric_only():
  records = {"mnli": [record("mnli", [0.5], {glue_metrics.MISMATCHED: 0.4})], "wnli": [record("wnli", [0.5])]}
  records["mrpc"] = [record("mrpc", [0.5], {"f1": 0.3})]
  rows = glue_metrics.reference_rows("coco_lm_base", "coco_lm")[:1]
  made = search.make_report("x", MEDIAN, records, references=rows).rows
  beside = {(row["task"], row["metric"]): row.get("COCO-LM base") for row in made}
  expected = {("mnli", "accuracy"): 0.885, ("mnli", "accuracy_mm"): 0.883, ("mrpc", "accuracy"): 0.914}
  for name, value in beside.items():
    assert (value or 0) == pytest.approx(expected.get(name, 0)), name


def test_subsets_are_marked_and_so_is_their_average():
  made = search.make_report("x", MEDIAN, eight(), subsets={"mnli", "qqp"})
  shown = printed(made, 120)
  assert line_of(shown, "MNLI")[0] == "MNLI-m*" and line_of(shown, "QNLI")[0] == "QNLI"
  assert "MNLI-m, QQP. AVG is not one either." in shown


def test_pooled_protocols_report_all_runs_and_tacos_average_of_nine_is_not_put_beside_ours():
  cells = [
    record("mrpc", [value], protocol="taco", cell=CELL._replace(epochs=n + 1))
    for n, value in enumerate((0.2, 0.4, 0.9))
  ]
  row = search.make_report("x", protocols.get("taco", "base"), {"mrpc": cells}).rows[0]
  assert (row["metric"], row["cell"]) == ("f1", "3 cells") and row["value"] == pytest.approx(0.5)
  records = {task: [record(task, [0.5], protocol="taco")] for task in glue_metrics.AVERAGED}
  rows = glue_metrics.reference_rows("taco_small", "taco")
  shown = printed(search.make_report("x", protocols.get("taco", "small"), records, references=rows), 120)
  assert line_of(shown, "AVG of 8")[3:] == ["50.0", "75.9", "74.7"]
  assert "TACO-250k small 76.2, MLM-250k small 75.0" in shown


def test_files_hold_scores_and_every_seed(tmp_path):
  rows = glue_metrics.reference_rows("coco_lm_base", "coco_lm")
  made = search.make_report("x", MEDIAN, {"rte": [record("rte", [0.25, 0.75])]}, references=rows)
  paths = {path.name: path for path in made.write(tmp_path / "new")}
  assert sorted(paths) == ["results.csv", "results.json", "results.md"]
  with paths["results.csv"].open() as file:
    (row,) = csv.DictReader(file)
  expected = {"task": "rte", "value": "0.5", "per_seed": "0=0.25;1=0.75", "COCO-LM base": "0.848"}
  assert {name: row[name] for name in expected} == expected
  value = json.loads(paths["results.json"].read_text())
  assert value["rows"][0]["per_seed"] == {"0": 0.25, "1": 0.75} and value["totals"][0]["value"] is None
  numbers = "| RTE | accuracy | 50.0 | 35.4 | 25.0 | 75.0 | 84.8 | 68.2 | 75.1 |"
  assert numbers in paths["results.md"].read_text()
  shown = [tables.percent(value) for value in (0.8805, 0.88349, 1.0, None)]  # 100 * 0.8805 is below 88.05
  assert shown == ["88.1", "88.3", "100.0", "-"]


CHOSEN = Chosen(Cell(8, 1e-2, 2, 0.1), 1, "accuracy", 0.5, {"numbers": 1})


@pytest.fixture(scope="module")
def encoding(small_encoder_run):
  words = vocabulary.load(small_encoder_run / "vocabulary")
  return lambda task: Encoding(words, 8, 2, 4)


def _nli(path, count, first="good"):
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = "".join(f"{row}\t{first} film\tbad film\n" for row in range(count))
  path.write_text("index\tsentence1\tsentence2\n" + rows, encoding="utf-8")


def test_what_is_there_is_told_and_what_is_cut_or_missing(tmp_path, encoding):
  _nli(tmp_path / "MNLI" / "test_matched.tsv", 3, "good " * 9)
  found = glue_predictions.load("mnli", str(tmp_path), encoding)
  assert list(found.sets) == list(found.digests) == ["mnli"]
  assert found.lines[0].startswith("mnli: predicts 3 rows of test_matched (")
  assert found.lines[1:] == [
    "mnli: texts truncated to 8 tokens: 3 of test_matched",
    f"mnli: no test_mismatched split in {tmp_path}; glue.zip gets placeholders for it",
    f"ax: no test split in {tmp_path}; glue.zip gets placeholders for it",
  ]


def test_an_index_that_is_there_twice_is_told_before_any_training(tmp_path, encoding):
  _nli(tmp_path / "RTE" / "test.tsv", 3)
  path = tmp_path / "RTE" / "test.tsv"
  path.write_text(path.read_text().replace("\n2\t", "\n1\t"))
  with pytest.raises(DataError, match=r"RTE.tsv: index '1'"):
    glue_predictions.load("rte", str(tmp_path), encoding)


def _session(workdir):
  config = types.SimpleNamespace(data=types.SimpleNamespace(eval_batch_size=4))
  return types.SimpleNamespace(
    workdir=workdir, config=config, pad_id=0, protocol=types.SimpleNamespace(stsb_divisor=5.0)
  )


def _predict(session, name, tests, chosen=CHOSEN, row=(0.0, 1.0, 0.0)):
  def outputs_of(batch):
    return np.broadcast_to(np.asarray(row, np.float32), (len(batch["ids"]), len(row)))

  glue_predictions.predict(session, name, chosen, outputs_of, tests)


def test_outputs_are_of_one_run_and_the_texts_that_are_there_now(tmp_path, encoding):
  data, session = tmp_path / "data", _session(tmp_path / "work")
  _nli(data / "MNLI" / "test_matched.tsv", 3)
  _predict(session, "mnli", glue_predictions.load("mnli", str(data), encoding))

  def is_there(chosen=CHOSEN):
    now = glue_predictions.load("mnli", str(data), encoding)
    return glue_predictions.is_there(session, "mnli", chosen, now)

  assert is_there() and not is_there(CHOSEN._replace(seed=2))
  for changed in (
    ("good film", "bad cat"),
    ("\tbad film", "\tbad cat"),
    ("\n2\t", "\n5\t"),
  ):  # texts and numbers
    path = data / "MNLI" / "test_matched.tsv"
    content = path.read_text()
    path.write_text(content.replace(*changed))
    assert not is_there(), changed
    path.write_text(content)
  assert is_there()
  stored = glue_predictions.path(session, "mnli")
  whole = stored.read_bytes()
  for content in (b"", b"nothing", b"PK\x03\x04"):
    stored.write_bytes(content)
    assert not is_there()
  stored.write_bytes(whole)
  _nli(data / "diagnostic" / "diagnostic.tsv", 2)
  assert not is_there()
  (tmp_path / "file").write_text("")
  with pytest.raises(StorageError, match=r"test_outputs\.npz"):
    _predict(_session(tmp_path / "file"), "rte", glue_predictions.Tests({}, {}, []))


def _submitted(workdir, name) -> list[str]:
  (path,) = workdir.glob("*.zip")
  with zipfile.ZipFile(path) as archive:
    rows = archive.read(name).decode().splitlines()[1:]
  path.unlink()
  return [row.split("\t")[1] for row in rows]


def test_wnli_is_handed_in_only_if_it_is_above_the_majority(tmp_path, encoding):
  _nli(tmp_path / "WNLI" / "test.tsv", 4)
  tests, session = glue_predictions.load("wnli", str(tmp_path), encoding), _session(tmp_path)
  texts, labels = ["good"] * 5, np.asarray([0, 1, 0, 1, 0], np.int32)
  dev = Split(texts, texts, labels, [*"01234"], 0, "made", is_official=False)
  data = {"wnli": glue_task.from_splits("wnli", dev, {"dev": dev}, encoding("wnli"))}
  for value, label, is_told in ((0.6, "0", True), (0.61, "1", False)):
    _predict(session, "wnli", tests, CHOSEN._replace(value=value), row=(0.0, 1.0))
    lines = glue_predictions.submit(session, {"wnli": tests}, data)
    assert any("wnli: " in line and "0.6000" in line for line in lines) == is_told
    assert set(_submitted(tmp_path, "WNLI.tsv")) == {label}


def test_scores_of_stsb_are_handed_in_on_the_scale_that_they_were_divided_from(tmp_path, encoding):
  tests = glue_predictions.load("stsb", str(small_glue.glue(tmp_path / "glue")), encoding)
  _predict(_session(tmp_path), "stsb", tests, row=(0.5,))
  glue_predictions.submit(_session(tmp_path), {"stsb": tests}, {})
  assert _submitted(tmp_path, "STS-B.tsv") == ["2.500"] * 6


GLUE = pathlib.Path(__file__).resolve().parents[4] / "shared" / "datasets" / "glue"
ROWS = (1063, 1821, 1725, 1379, 9796, 9847, 5463, 390965, 3000, 146, 1104)
NAMES = ("CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI", "AX")


def whole(key, value):
  rows = predictions.official_rows(key)
  return Predictions([str(row) for row in range(rows)], [value] * rows)


def members(path):
  with zipfile.ZipFile(path) as archive:
    return {name: archive.read(name).decode().splitlines() for name in archive.namelist()}


def test_a_submission_has_all_eleven_files_with_a_row_per_official_row(tmp_path):
  path, lines = predictions.write_submission(
    tmp_path / "out" / "s.zip", {"rte": whole("rte", "not_entailment")}
  )
  found = members(path)
  assert {name: len(rows) - 1 for name, rows in found.items()} == {
    f"{name}.tsv": rows for name, rows in zip(NAMES, ROWS)
  }
  assert {rows[0] for rows in found.values()} == {"index\tprediction"}
  assert found["RTE.tsv"][1] == "0\tnot_entailment" and found["RTE.tsv"][-1] == "2999\tnot_entailment"
  # A line lists the tasks without predictions; their files hold the majority class.
  assert lines[1].endswith(
    "CoLA.tsv (1), SST-2.tsv (1), MRPC.tsv (1), STS-B.tsv (2.701), MNLI-m.tsv (contradiction), MNLI-mm.tsv "
    "(contradiction), QNLI.tsv (not_entailment), QQP.tsv (0), WNLI.tsv (0), AX.tsv (contradiction)"
  )
  assert found["WNLI.tsv"][1:3] == ["0\t0", "1\t0"]


def test_scores_have_three_decimals_and_an_index_is_that_of_the_test_file(tmp_path):
  given, reversed_rows = whole("stsb", 1.23456), whole("wnli", "1")
  given.values[:4] = [-0.1, -0.0001, 5.2, 4.9996]  # pyright: ignore
  reversed_rows = reversed_rows._replace(ids=reversed_rows.ids[::-1])
  path, lines = predictions.write_submission(tmp_path / "s.zip", {"stsb": given, "wnli": reversed_rows})
  assert members(path)["STS-B.tsv"][1:6] == ["0\t0.000", "1\t0.000", "2\t5.000", "3\t5.000", "4\t1.235"]
  assert lines[-1].startswith("changed 3 scores") and members(path)["WNLI.tsv"][1] == "145\t1"


def test_a_submission_with_subsets_says_so_in_its_name(tmp_path):
  given = {"qqp": Predictions(["0", "1"], ["0", "1"])}
  path, lines = predictions.write_submission(tmp_path / "s.zip", given)
  assert path == tmp_path / "s.subset-not-for-submission.zip" and list(tmp_path.iterdir()) == [path]
  assert "QQP.tsv 2 of 390965 rows" in lines[2]
  assert members(path)["QQP.tsv"] == ["index\tprediction", "0\t0", "1\t1"]


def test_outputs_become_official_labels_and_scores():
  logits = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
  assert predictions.predictions("ax", ["0", "1"], logits).values == ["entailment", "contradiction"]
  assert predictions.predictions("cola", ["0"], np.array([[0.0, 1.0]])).values == ["1"]
  assert predictions.predictions("stsb", ["7"], np.array([[0.5]]), scale=5.0) == Predictions(["7"], [2.5])
  with pytest.raises(DataError, match=r"CoLA\.tsv"):
    predictions.predictions("cola", ["0"], np.full((1, 2), np.nan))


@pytest.mark.skipif(not GLUE.is_dir(), reason="../shared/datasets, the official GLUE files, is not here")
def test_placeholders_are_the_majority_of_the_training_set():
  for key, column, header in (
    ("cola", 1, 0), ("sst2", 1, 1), ("mrpc", 0, 1), ("rte", 3, 1), ("wnli", 3, 1), ("stsb", 9, 1)
  ):  # fmt: skip
    folder = predictions.FILES[key].name.removesuffix(".tsv")
    with gzip.open(GLUE / folder / "train.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
      rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]
    ((most, _),) = collections.Counter(row[column] for row in rows).most_common(1)
    mean = f"{np.mean([float(row[column]) for row in rows]):.3f}" if key == "stsb" else ""
    assert predictions.FILES[key].placeholder == (mean or most), key


def test_runs_that_left_updates_out_are_named(tmp_path):
  whole = record("rte", [0.5, 0.6, 0.7])
  assert "skipped because" not in printed(search.make_report("x", MEDIAN, {"rte": [whole]}), 200)
  seeds = whole.seeds | {
    1: [Evaluation(5, 1.0, {"accuracy": 0.6}, 7), Evaluation(9, 2.0, {"accuracy": 0.5}, 1200)]
  }
  made = search.make_report(
    "x", MEDIAN, {"rte": [whole._replace(seeds=seeds)], "mrpc": [record("mrpc", [0.5])]}
  )
  assert "skipped because they were not finite: RTE seed 1 1,200. Such a run" in printed(made, 200)
  made.write(tmp_path)
  rows = json.loads((tmp_path / "results.json").read_text())["rows"]
  assert [row["skipped_updates"] for row in rows if row["is_main"]] == [{"1": 1200}, {}]


def test_the_diagnostic_set_is_encoded_like_mnli():
  start = types.SimpleNamespace(encoder=types.SimpleNamespace(vocabulary="words"))
  protocol = types.SimpleNamespace(stsb_divisor=5.0)
  session = types.SimpleNamespace(max_length={"mnli": 128, "stsb": 64}.get, protocol=protocol, start=start)
  data = types.SimpleNamespace(buckets=2, bucket_multiple=8)
  made = types.SimpleNamespace(config=types.SimpleNamespace(data=data), session=session)
  for task, expected in (("ax", (128, 1.0)), ("stsb", (64, 5.0))):
    found = search.Glue.encoding(made, task)  # pyright: ignore[reportArgumentType]
    assert (found.max_length, found.divisor) == expected, task
