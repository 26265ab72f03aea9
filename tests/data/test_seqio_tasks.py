"""TFDS and seqio, in and out; `with_tensorflow.py` reads everything in one process of its own."""

import collections
import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from data import errors, seqio_tasks, sources, tfds_reader
from data.rows import datasets
from tests.data.conftest import ROOT
from tests.data.user_folder import make_folder

LENGTH = 32


@pytest.fixture(scope="module")
def results(tmp_path_factory, vocabulary_directory, prepared):
  directory = tmp_path_factory.mktemp("seqio")
  shutil.copytree(prepared, make_folder(directory / "user", vocabulary_directory) / "records")
  command = [sys.executable, "-m", "tests.data.with_tensorflow", str(directory)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
  made = directory / "results.json"
  assert made.is_file(), done.stderr[-3000:]
  return json.loads(made.read_text()) | {"exit code": done.returncode, "directory": directory}


def rows_of(results, name: str) -> list[list[int]]:
  """The block of each line of a file, from ids that were encoded without TensorFlow."""
  special = results["special"]
  found = [[special["cls"], *ids, special["sep"]] for ids in results[name]]
  return [block + [special["pad"]] * (LENGTH - len(block)) for block in found]


def as_set(rows) -> set[tuple[int, ...]]:
  return set(map(tuple, rows))


def test_the_shards_of_a_task_and_a_mixture_are_read_once_at_its_rates(results):
  lines = [[f"line {at}"] for shard in range(3) for at in range(shard, 100, 3)]
  assert results["seqio:hundred"] == [[["hundred", shard, 1.0] for shard in range(3)], lines]
  parts, texts = results["seqio:even"]  # rates 1 and 2 of 100 and 20 documents: 1/10 of the first
  assert parts == [*(["hundred", shard, pytest.approx(0.1)] for shard in range(3)), ["twenty", 0, 1.0]]
  key = {
    text: int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") for (text,) in lines
  }
  kept = [[text] for (text,) in lines if key[text] < 2**64 / 10]
  assert 5 < len(kept) < 15 and texts == [*kept, *([f"two {at}"] for at in range(20))]
  assert results["rates rated"] == [["one_of_two", 100.0], ["twenty", 0.3]]


def test_a_split_for_evaluation_is_the_held_out_text_unless_nothing_is_held_out(results):
  trained = [["train", [f"train {at}"]] for at in range(9)]
  assert results["evaluated 0.5"] == [*trained, *(["heldout", [f"heldout {at}"]] for at in range(9))]
  assert results["evaluated 0.0"] == trained


def test_examples_of_a_task_are_rows_with_texts_for_what_it_tokenises(results):
  place = "seqio:labelled#validation, example"
  assert results["rows of a Task"] == [
    [{"inputs": "a film", "targets": "x", "score": 0.5}, 1, f"{place} 1"],
    [{"inputs": "a mat", "targets": "y", "score": 2.0}, 2, f"{place} 2"],
  ]


def test_a_tfds_data_set_is_text_by_shards_and_rows_with_names_of_labels(results):
  shards, texts = results["tfds"]
  assert shards == [0, 1, 2] and sorted(texts) == sorted([f"text {at}", "more"] for at in range(30))
  rows = {row["body"]: row for row in results["rows of TFDS"]}
  assert len(rows) == 30
  for at in range(30):
    tags = ["B-X", "O"][at % 3 :]
    row = rows[f"text {at}\n\nmore"]
    assert (row["tags"], row["spans"]) == (tags, {"label": ["B-X"]})


def test_glue_and_squad_of_tfds_are_in_the_order_and_the_labels_of_the_official_files(results):
  train, test, snli, *binary = results["glue of TFDS"]
  assert [split[3] for split in binary] == [["int32", [1]]] * 5
  numbers = [str(at) for at in range(7)]
  assert train[:3] == [[f"first {at}" for at in numbers], [f"sécond {at}" for at in numbers], numbers]
  # TFDS: entailment, neutral, contradiction; the official order: contradiction, entailment, neutral.
  assert train[3:] == [["int32", [1, 2, 0, 1, 2, 0, 1]], 0, False]
  assert test == [["a"], ["b"], ["0"], None, 0, False]
  assert sorted(snli[0]) == [f"first {at}" for at in (1, 3, 5)]  # the others have no label
  assert snli[3:] == [["int32", [1, 1, 1]], 4, False]
  assert results["squad"] == {
    "a": ["Where?", [["France", 9, True], ["in France", 6, True]], False],
    "b": ["Where?", [], True],
  }


def test_a_vocabulary_gives_the_same_ids_in_seqio(results):
  for kind in ("plain", "official", "wordpiece", "byte_level"):
    assert all(results[f"vocabulary {kind}"].values()), (kind, results[f"vocabulary {kind}"])


def test_the_blocks_of_a_task_are_the_records_in_order(results):
  found = {name: value for name, value in results.items() if name.startswith("packed ")}
  names = ("plain_complete", "official_none", "wordpiece_concat", "byte_level_segments")
  assert {f"packed {name}": True for name in names}.items() <= found.items(), found
  assert results["packed held out"] and all(results["packed of Tasks"].values()), results["packed of Tasks"]


def test_prepared_records_through_seqio_are_the_trainers_batches(results):
  assert all(results["prepared"].values()), results["prepared"]


def test_a_row_is_padded_with_our_pad_and_has_positions_and_a_segment(results):
  found = results["converter"]
  size, ids = found["size"], found["encoder_input_tokens"]
  assert 4 < size < 16 and ids[0] == 0 and ids[size - 1] == 2 and 1 not in ids[:size]
  assert ids[size:] == [1] * (16 - size)
  assert found["encoder_positions"] == [*range(size), *[0] * (16 - size)]
  assert found["encoder_segment_ids"] == [1] * size + [0] * (16 - size)


def test_texts_of_a_row_are_kept_apart_as_the_trainer_does(results):
  from pretrain.ops import positions  # what attention reads here

  rows, cls, pad = results["texts of rows"]
  assert max(max(row["encoder_segment_ids"]) for row in rows) >= 3
  for row in rows:
    ids = np.asarray([row["encoder_input_tokens"]])
    mask = (ids != pad).astype(np.int32)
    segments = positions.segments_of(ids, mask, cls=cls)
    np.testing.assert_array_equal(segments[0], row["encoder_segment_ids"])
    places = positions.positions_in_segments(segments) * mask
    np.testing.assert_array_equal(places[0], row["encoder_positions"])


def test_examples_that_are_ids_are_packed_or_are_records_already(results):
  (train,) = results["tokenised sentences"]
  long = [*range(5, 45)]  # 40 ids: [CLS], 30 of them, [SEP], and the rest
  assert [0, *long[:30], 2] in train and [0, *long[30:], 2] in train
  assert len(train) == 3 and sum(record.count(2) for record in train) == 6  # 4 sentences, 2 borders
  assert results["tokenised blocks"] == [[[0, 9, 10, 2], [0, 11, 2]]]
  assert results["tokens of blocks"] == 4 + 3
  assert [results[f"tokenised {name}"] for name in ("broken_ids", "long", "outside")] == [[3]] * 3


def test_a_fraction_of_examples_that_are_ids_is_another_one_than_the_held_out(results):
  chosen = [
    (number, heldout < 0.3)
    for number, (fraction, heldout) in enumerate(results["fractions of many"], 5)
    if fraction < 0.5
  ]
  assert results["tokenised many"] == [
    sorted([0, number, number + 1, 2] for number, is_heldout in chosen if is_heldout == wanted)
    for wanted in (False, True)
  ]


def test_a_stream_has_the_blocks_of_its_lines_epoch_after_epoch_by_its_seed(results):
  lines = as_set(rows_of(results, "one_train"))
  assert as_set(results["lines"]) == as_set(results["of ids"]) == lines and len(results["lines"]) == 400
  assert min(collections.Counter(map(tuple, results["lines"])).values()) >= 2  # 6.7 times on average
  one, other = results["chunks"]
  assert results["again"] == results["lines"] and one != other  # other lines, not only another order
  flat = np.array(results["segments"])
  flat = flat[flat != results["special"]["pad"]]
  texts = [text.tolist() for text in np.split(flat, np.flatnonzero(flat == results["special"]["cls"])[1:])]
  pad = results["special"]["pad"]
  assert as_set(text + [pad] * (LENGTH - len(text)) for text in texts) == lines and len(texts) > 150


def test_blocks_of_a_document_are_permuted_by_the_seed_and_those_of_a_packed_task_are_not(results):
  cls, sep, pad = (results["special"][name] for name in ("cls", "sep", "pad"))
  of_ids = [[cls, *[number] * (LENGTH - 2), sep] for number in range(10, 30)]
  of_text = [block + [pad] * (LENGTH - len(block)) for block in results["long_text in order"]]
  for name, blocks in (("long_ids", of_ids), ("long_text", of_text)):
    assert results[name] == np.random.default_rng(3).permutation(blocks).tolist()
  packed = [block + [pad] * (LENGTH - len(block)) for block in results["packed by seqio"]]
  assert results["packed"][:8] == packed[:8]


def test_blocks_to_evaluate_on_are_the_first_of_the_validation_split_in_its_order(results):
  few, all_of_them = results["held out"]
  expected = rows_of(results, "one_validation")
  assert few == expected[:5] and all_of_them == expected
  assert results["none held out"] == ["", 0]


def test_a_mixture_streams_at_its_rates(results):
  one = as_set(rows_of(results, "one_train"))
  share = sum(tuple(row) in one for row in results["both"]) / len(results["both"])
  assert share == pytest.approx(0.7, abs=0.05)
  assert as_set(results["both"]) <= one | as_set(rows_of(results, "two_train"))


def test_prepared_records_stream_from_any_batch_as_the_trainers_and_facts_name_what_decides(results):
  assert results["prepared from step 3"] == [24, results["the trainer's"]]
  facts, digest = results["facts"]
  module = hashlib.sha256((results["directory"] / "user/user_tasks.py").read_bytes()).hexdigest()
  assert (facts["source"], facts["module"], facts["records"]) == ("seqio:one", module, "")
  assert facts["versions"].keys() == {"seqio", "tensorflow", "tensorflow-datasets"} and len(digest) == 64


REFUSED = [
  # What was read, exit code, words of the message.
  ("seqio:only_ids", 3, "no text feature 'text'; it has targets (int32)"),
  ("seqio:untrained", 3, "'untrained' has no split 'train'; its splits are test"),
  ("seqio:absent", 3, "\n  --download"),
  ("seqio:zero", 2, "'one_of_two'"),
  ("seqio:hundre", 3, "did you mean 'hundred'?"),
  ("no module", 2, "--module=no_such_module"),
  ("rates zero", 2, "'one_of_two' is 0.0"),
  ("rates twenty", 3, "  --config.data.source=seqio:twenty"),
  ("rates rate", 3, "did you mean 'rated'?"),
  ("rows labelled", 3, "'train'; its splits are validation"),
  ("rows even", 3, "is a Mixture"),
  ("tfds without the feature", 3, "no feature 'text'; it has body"),
  ("no split", 3, "no split 'test'; its splits are train"),
  ("damaged", 3, "corrupted record"),
  ("damaged description", 3, "dataset_info.json: damaged"),
  ("stream no vocabulary", 2, "\n  --config.data.vocabulary=DIR"),
  ("stream packing", 2, "\n  --config.data.length=32 --config.data.packing=complete"),
  ("stream short", 3, "ended after 2 blocks"),
  ("stream broken", 3, "no such column"),
  ("refused no vocabulary", 2, "--vocabulary={directory}/notebook/plain"),
  ("refused another vocabulary", 2, "use --vocabulary={directory}/notebook/plain"),
  ("refused another packing", 2, "use --length=32 --packing=none"),
  ("refused stock", 3, "DirectoryVocabulary(DIR)"),
  ("refused no vocabulary yet", 3, "vocabularies/wikipedia_books"),
  ("refused no data", 3, "\n  --download\n"),
  ("refused no seed", 2, "seed=None"),
  ("refused no length", 2, "{{'inputs': 32}}"),
  ("refused short", 2, "{{'inputs': 32}}"),
  ("refused short, prepared", 2, "{{'inputs': 32}}"),
  ("refused pack", 2, "pack=False"),
  ("refused no pad", 2, "EncoderConverter.of('NAME')()"),
  ("refused length", 2, "length=7"),
  ("refused seed", 2, "seed=-1"),
  ("refused nothing held out", 3, "tiny.txt"),
  ("refused ids", 3, "seqio:flat"),
]


def test_what_cannot_be_read_or_would_lose_tokens_or_order_is_refused_in_one_line(results):
  failures = []
  for name, code, words in REFUSED:
    found, message = results[name]
    words = words.format(directory=results["directory"])
    if found != code or words not in message or "\n" in message.replace("\n  ", ""):
      failures.append(f"{name}: {found} {message}, expected {code} {words}")
  assert not failures, "\n".join(failures)


def test_corpora_are_registered_a_notebook_keeps_its_accelerators_and_may_end_while_records_are_read(results):
  corpora = ("web_160gb", "wikipedia_books")
  assert results["names"] == [f"{corpus}_packed_{length}" for corpus in corpora for length in (128, 512)]
  assert results["cached as"] == [True, False]  # a packed Task may be cached by seqio; records are a cache
  assert results["exit code"] == 0


def test_missing_corpora_and_data_sets_are_refused_without_tensorflow_with_what_to_do(tmp_path, monkeypatch):
  monkeypatch.setattr(tfds_reader, "import_tfds", lambda: pytest.fail("ten seconds of importing"))
  for name in seqio_tasks.CORPORA:
    with pytest.raises(errors.DataError, match="\n  --download\n"):
      sources.check(sources.Request(f"seqio:{name}", tfds_directory=str(tmp_path)))
  for path in ("tfds:mine", "tfds:#train"):
    with pytest.raises(errors.DataError, match=path.removeprefix("tfds:")):
      datasets.read(path, "train", directory=str(tmp_path), module="", download=path == "tfds:#train")


def test_without_tensorflow_such_a_source_is_refused_in_one_line(tmp_path, monkeypatch):
  for missing in ("tensorflow", "tensorflow_datasets", "seqio"):
    with monkeypatch.context() as patched:
      patched.setitem(sys.modules, missing, None)  # as on Python 3.14
      for source in ("tfds:books", "seqio:a_task"):
        with pytest.raises(errors.ConfigError, match=f"{missing}.*\n  pip install -r requirements-seqio.txt"):
          sources.check(sources.Request(source, tfds_directory=str(tmp_path)))
        with pytest.raises(errors.ConfigError, match=missing):
          datasets.read(source, "train", directory=str(tmp_path), module="", download=True)
      with pytest.raises(errors.ConfigError, match=missing):
        tfds_reader.import_tfds()


def test_names_of_data_sets_have_a_kind_and_a_split_and_their_rows_a_digest():
  for path, kind, split in (
    ("tfds:glue/cola:2.0.0#validation", "tfds", ("glue/cola:2.0.0", "validation")),
    ("seqio:mine", "seqio", ("mine", "train")),
    ("train.csv", "", None),
    ("seqio", "", None),
    ("C:\\train.csv", "", None),
  ):
    assert datasets.kind_of(path) == kind
    assert not kind or datasets.split_of(path, "train") == split
  rows = [datasets.Row({"text": text}, at, "tfds:mine", "example") for at, text in enumerate("ab", 1)]
  assert datasets.digest(rows) != datasets.digest(rows[::-1])


def test_the_newest_version_of_a_tfds_data_set_is_found(tmp_path):
  for place in ("c4/en/3.1.0", "c4/en/3.10.0", "c4/en/3.2.0", "pg19/0.1.1"):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "dataset_info.json").write_text("{}")
  found = {
    "c4/en": "c4/en/3.10.0",
    "c4/en:3.1.0": "c4/en/3.1.0",
    "c4": "c4/en/3.10.0",
    "pg19:0.1.1": "pg19/0.1.1",
  }
  for name, place in found.items():
    assert tfds_reader.find(str(tmp_path), name) == tmp_path / place
  assert tfds_reader.find(str(tmp_path), "c4/en:9.0.0") is None
  shutil.copytree(tmp_path / "c4/en", tmp_path / "c4/de")
  with pytest.raises(errors.DataError, match=r"name one, as c4/de$"):
    tfds_reader.find(str(tmp_path), "c4")
  with pytest.raises(errors.DataError, match=r"'c4/en:9\.0\.0'"):
    tfds_reader.find_or_download(str(tmp_path), "c4/en:9.0.0", download=False)
