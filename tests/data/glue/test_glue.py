"""GLUE out of files: the columns, labels and rows of every task, and what is refused."""

import gzip

import numpy as np
import pytest

from data import glue
from data.errors import ConfigError, DataError
from tests.data.conftest import SHARED, refused

OFFICIAL = SHARED / "datasets" / "glue"
MNLI_HEADER = "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label"


def write(directory, name, *lines, ending="\n"):
  path = directory / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes((ending.join(lines) + ending).encode())
  return path


def test_a_pair_task_is_read_by_the_names_of_its_columns(tmp_path):
  rows = ("7\t1\tA man.\tA boy.\tneutral\tcontradiction", "9\t2\tA cat.\tA pet.\tneutral\tneutral")
  write(tmp_path, "MNLI/train.tsv", MNLI_HEADER, *rows)
  split = glue.read(str(tmp_path), "mnli", "train")
  assert split.first == ["A man.", "A cat."]
  assert split.second == ["A boy.", "A pet."]
  assert split.ids == ["7", "9"]
  assert split.labels.dtype == np.int32
  assert split.labels.tolist() == [0, 2]  # contradiction, entailment, neutral
  assert not split.is_official  # two rows of 392,702


def test_cola_has_a_header_in_its_test_file_only(tmp_path):
  write(tmp_path, "CoLA/train.tsv", "gj04\t0\t*\tHe eat.", "gj04\t1\t\tHe eats.")
  write(tmp_path, "CoLA/test.tsv", "index\tsentence", "0\tHe ate.")
  train, test = glue.read_all(str(tmp_path), [("cola", "train"), ("cola", "test")])
  assert (train.first, train.second, train.labels.tolist()) == (["He eat.", "He eats."], None, [0, 1])
  assert (test.first, test.labels) == (["He ate."], None)


def test_quotes_mean_nothing_and_a_byte_order_mark_or_carriage_returns_leave_no_trace(tmp_path):
  lines = ("\ufeffsentence\tlabel", '"never ends\t1', "``so'' he\x08 said \t0")
  write(tmp_path, "SST-2/dev.tsv", *lines, ending="\r\n")
  split = glue.read(str(tmp_path), "sst2", "dev")
  assert split.first == ['"never ends', "``so'' he\x08 said "]
  assert split.labels.tolist() == [1, 0]


def test_a_gzipped_file_without_a_final_newline_is_read(tmp_path):
  (tmp_path / "SST-2").mkdir()
  (tmp_path / "SST-2" / "dev.tsv.gz").write_bytes(gzip.compress(b"sentence\tlabel\ngood\t1"))
  assert glue.read(str(tmp_path), "sst2", "dev").first == ["good"]


def test_broken_rows_of_qqp_are_dropped_and_counted_but_not_in_its_test_set(tmp_path):
  header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
  write(tmp_path, "QQP/train.tsv", header, "5\t1\t2\ta?\tb?\t1", '"\tWhy?\t0', "6\t3\t4\tc?\td?\t0")
  write(tmp_path, "QQP/test.tsv", "id\tquestion1\tquestion2", "0\ta?\tb?", "1\tc?")
  split = glue.read(str(tmp_path), "qqp", "train")
  assert (split.ids, split.dropped) == (["5", "6"], 1)
  with pytest.raises(DataError, match=r"test\.tsv:3: 2 columns, expected 3"):
    glue.read(str(tmp_path), "qqp", "test")


def test_the_label_of_snli_is_the_last_column_and_rows_without_agreement_are_dropped(tmp_path):
  header = "\t".join(["index", *"bcdefg", "sentence1", "sentence2", "label1", "gold_label"])
  start = "\t".join("0123456")
  more = "\t".join(["neutral"] * 4)
  rows = (f"{start}\ta\tb\tneutral\tentailment", f"{start}\tc\td\tx\t{more}\tcontradiction")
  write(tmp_path, "SNLI/train.tsv", header, *rows, f"{start}\te\tf\tneutral\t-")
  split = glue.read(str(tmp_path), "snli", "train")
  assert (split.first, split.labels.tolist(), split.dropped) == (["a", "c"], [1, 0], 1)


def test_scores_are_floats_from_0_to_5(tmp_path):
  write(tmp_path, "STS-B/dev.tsv", "index\tsentence1\tsentence2\tscore", "0\ta\tb\t0.000", "1\tc\td\t4.75")
  split = glue.read(str(tmp_path), "stsb", "dev")
  assert split.labels.dtype == np.float32
  assert split.labels.tolist() == [0.0, 4.75]


def test_a_test_set_with_empty_labels_has_none(tmp_path):
  for labels in (("-1", "-1"), ("", "")):
    rows = [f"{number}\ta\tb\t{label}" for number, label in enumerate(labels)]
    write(tmp_path, "RTE/test.tsv", "index\tsentence1\tsentence2\tlabel", *rows)
    assert glue.read(str(tmp_path), "rte", "test").labels is None


def test_a_subset_is_read_as_such(tmp_path):
  header = "index\tsentence1\tsentence2\tlabel"
  write(tmp_path, "MNLI/dev.subset.tsv", header, "0\ta\tb\tentailment")
  split = glue.read(str(tmp_path), "mnli", "dev_matched")
  assert split.labels.tolist() == [1]
  assert not split.is_official
  assert "not GLUE scores" in split.source
  assert glue.available(str(tmp_path), "mnli") == ("dev_matched",)
  write(tmp_path, "SST-2/dev.subset.tsv", "index\tsentence1\tlabel", "0\tgood\t1")
  assert glue.read(str(tmp_path), "sst2", "dev").second is None
  write(tmp_path, "WNLI/dev.subset.tsv", header, *(f"{row}\ta\tb\t1" for row in range(71)))
  assert not glue.read(str(tmp_path), "wnli", "dev").is_official  # though it has as many rows as the real one


HEADER = "index\tsentence1\tsentence2\tlabel"
SCORE = HEADER.replace("label", "score")
TWO = b"sentence\tlabel\n"
BAD = [
  # The task, what its dev.tsv has, words of the message.
  ("rte", [HEADER, "0\ta\tb\tentailment", "1\ta\tb"], "dev.tsv:3: 3 columns, expected 4"),
  ("rte", [HEADER, "0\ta\tb\tmaybe"], ":2: label 'maybe'"),
  ("rte", [HEADER, "0\ta\tb\t1"], ":2: label '1', expected one of entailment"),
  ("wnli", [HEADER, "0\ta\tb\t1", "1\ta\tb\t-1"], ":3: label '-1'"),
  ("wnli", [HEADER, "0\ta\tb\t-1"], ":2: label '-1'"),
  ("wnli", [HEADER, "0\ta\tb\t2"], ":2: label '2'"),
  ("stsb", [SCORE, "0\ta\tb\t5.2"], ":2: score '5.2'"),
  ("stsb", [SCORE, "0\ta\tb\t-0.1"], ":2: score '-0.1'"),
  ("stsb", [SCORE, "0\ta\tb\tnan"], ":2: score 'nan'"),
  ("stsb", [SCORE, "0\ta\tb\tx"], ":2: score 'x'"),
  ("rte", ["index\tsentence1\tlabel", "0\ta\tb"], ":1: no column 'sentence2'"),
  ("rte", ["index\tsentence1\tsentence2", "0\ta\tb"], ":1: no column 'label'"),
  ("rte", ["index\tsentence1\tsentence1\tlabel"], ":1: column 'sentence1' twice"),
  ("rte", [HEADER], "dev.tsv: no rows"),
  ("sst2", b"", "dev.tsv: empty"),
  ("sst2", TWO + b"good\t1\n\xff\xfe\t0\n", "dev.tsv:3: not UTF-8"),
  ("sst2", TWO + b"go\0od\t1\n", "dev.tsv:2: a NUL byte"),
]


def test_a_bad_file_is_refused_with_its_line(tmp_path):
  failures = []
  for number, (task, lines, words) in enumerate(BAD):
    name = f"{glue.TASKS[task].folders[0]}/dev.tsv"
    path = write(tmp_path / str(number), name, *(lines if isinstance(lines, list) else ()))
    if isinstance(lines, bytes):
      path.write_bytes(lines)
    code, message = refused(lambda path=path, task=task: glue.read(str(path.parents[1]), task, "dev"))
    if code != 3 or words not in message or "\n" in message:
      failures.append(f"{task} {lines}: {code} {message}, expected {words}")
  assert not failures, "\n".join(failures)
  (tmp_path / "SST-2").mkdir()
  (tmp_path / "SST-2" / "dev.tsv.gz").write_bytes(gzip.compress(TWO + b"good\t1\n" * 100)[:-9])
  with pytest.raises(DataError, match=r"dev\.tsv\.gz: cannot be read"):
    glue.read(str(tmp_path), "sst2", "dev")


def test_a_wrong_task_or_split_names_the_right_ones(tmp_path):
  with pytest.raises(ConfigError, match=r"did you mean 'sst2'\?"):
    glue.read(str(tmp_path), "SST-2", "dev")
  with pytest.raises(ConfigError, match=r"'dev'; its splits are train, dev_matched"):
    glue.read(str(tmp_path), "mnli", "dev")


def numbered(rows):
  labels = np.arange(rows, dtype=np.int32) % 2
  texts = [str(row) for row in range(rows)]
  return glue.Split(texts, None, labels, texts, 0, "numbers", is_official=True)


def test_a_smaller_fraction_is_a_part_of_a_larger_one_and_of_another_seed_is_another():
  whole = numbered(1000)
  ten, one = glue.fraction(whole, 0.1, seed=3), glue.fraction(whole, 0.01, seed=3)
  assert (len(ten), len(one)) == (100, 10)
  assert set(one.first) < set(ten.first)
  assert set(one.first) != set(glue.fraction(whole, 0.01, seed=4).first)
  assert ten.labels.tolist() == [int(text) % 2 for text in ten.first]
  assert not ten.is_official
  assert glue.fraction(whole, 1.0, seed=3).first == whole.first
  assert glue.fraction(whole, 1.0, seed=3).is_official
  assert not whole.take([*range(1000), 0]).is_official and not whole.take([*range(999), 0]).is_official
  assert len(glue.fraction(whole, 1e-9, seed=3)) == 1
  assert len(glue.fraction(whole, 0.0026, seed=3)) == 3  # the nearest number
  with pytest.raises(ConfigError, match=r"fraction=1\.5"):
    glue.fraction(whole, 1.5, seed=3)


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="needs the official GLUE files in ../shared/datasets")
def test_the_official_files_are_whole():
  for task in glue.TASKS:
    for split in glue.available(str(OFFICIAL), task):
      if task != "sst2" or split != "train":  # the one large file
        assert glue.read(str(OFFICIAL), task, split).is_official, (task, split)


def test_the_official_numbers_of_rows():
  # Table 1 of the GLUE paper in exact numbers: training, development, test.
  sizes = {
    "mnli": (392_702, 9_815, 9_832, 9_796, 9_847),
    "qqp": (363_849, 363_846, 40_430, 390_965),  # two training files are in use
    "qnli": (104_743, 5_463, 5_463),
    "sst2": (67_349, 872, 1_821),
    "cola": (8_551, 1_043, 1_063),
    "rte": (2_490, 277, 3_000),
    "mrpc": (3_668, 408, 1_725),
    "stsb": (5_749, 1_500, 1_379),
    "wnli": (635, 71, 146),
    "ax": (1_104,),
    "snli": (549_367, 9_842, 9_824),
  }
  found = {name: sum(task.sizes.values(), ()) for name, task in glue.TASKS.items()}
  assert found == sizes


def test_all_splits_that_are_missing_are_told_at_once_and_no_file_is_read(tmp_path):
  write(tmp_path, "SST-2/train.tsv", "not the right header")
  missing = [("mnli", "train"), ("mnli", "dev_mismatched"), ("wnli", "dev")]
  code, line = refused(lambda: glue.check(str(tmp_path), [("sst2", "train"), *missing]))
  assert code == 3 and "sst2" not in line and "mnli dev_mismatched, wnli dev" in line
  assert "\n  --config.data.directory=DIR\n  --download" in line
  glue.check(str(tmp_path), missing, download=True)
