"""Text to records, end to end: the same bytes whatever happens."""

import collections
import hashlib
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np

from data import errors, manifest, records, vocabulary
from data.prepare import __main__ as prepare
from data.prepare import packing, pipeline
from data.vocabulary import train as vocabulary_train
from tests.data.conftest import ROOT, arguments, make_documents

DOCUMENTS = [document for number in range(3) for document in make_documents(60, seed=number)]  # of `corpus`


def digests(directory):
  """Returns the sha256 of every file under `directory`."""
  files = sorted(path for path in pathlib.Path(directory).rglob("*") if path.is_file())
  return {str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def lines(documents):
  """Returns the sentences of documents."""
  counts = collections.Counter()
  return [s for d in documents for paragraph in d for s in packing.split_sentences(paragraph, counts)]


def rows_of(directory, split="train", length=32):
  """Returns the padded records of a split, and the id of their padding."""
  source = records.PackedRecords(directory, split=split, length=length, seed=0)
  return source.rows(0, len(source)), source.pad


def stop(*_, **__):
  raise KeyboardInterrupt


def test_the_manifest_describes_the_files(prepared, corpus, vocabulary_directory):
  made = manifest.read(prepared)
  settings = {"source": f"{corpus}/*.txt", "text_field": "text", "module": "", "limit": 0, "length": 32}
  settings |= {"packing": "complete", "seed": 0, "heldout_fraction": 0.1, "fraction": 1.0, "clean": ""}
  assert made.settings == settings | {"vocabulary": vocabulary.load(vocabulary_directory).digest}
  assert (made.length, made.packing, made.counts["documents"]) == (32, "complete", 180)
  assert made.counts["sentences"] == len(lines(DOCUMENTS))
  assert made.counts["characters"] == sum(map(len, lines(DOCUMENTS)))
  assert not [name for name in made.counts if name.startswith(("documents_read", "dropped"))]
  for name, split in made.splits.items():
    assert sum(shard.records for shard in split.shards) == split.records == made.counts[f"{name}_records"] > 9
    for shard in split.shards:
      content = (prepared / shard.name).read_bytes()
      assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
  names = [shard.name for split in made.splits.values() for shard in split.shards]
  assert names[3:5] == ["train-00000-of-00003.arrayrecord", "train-00001-of-00003.arrayrecord"]
  others = [manifest.NAME, "unigram.npy", "vocabulary"]
  assert sorted(path.name for path in prepared.iterdir()) == sorted([*names, *others])


def test_every_token_arrives_once_and_documents_stay_on_one_side(prepared):
  words, made = vocabulary.load(prepared / "vocabulary"), manifest.read(prepared)
  special = words.special_ids
  for split in pipeline.SPLITS:
    documents = [
      document
      for document in DOCUMENTS
      if (pipeline.document_fraction(document, "heldout", 0) < 0.1) == (split == "heldout")
    ]
    rows, pad = rows_of(prepared, split)
    assert (rows[:, 0] == special.cls).all() and not (rows[:, 1:] == special.cls).any()
    found = np.bincount(rows[rows != pad], minlength=words.size)
    assert found.sum() == made.splits[split].tokens
    if split == "train":
      np.testing.assert_array_equal(np.load(prepared / "unigram.npy"), found)
    found[[special.cls, special.sep]] = 0
    ids = [i for sentence in words.encode_batch(lines(documents)) for i in sentence]
    np.testing.assert_array_equal(found, np.bincount(ids, minlength=words.size))


def test_most_segments_and_the_largest_id_are_those_of_all_files(vocabulary_directory, tmp_path):
  """The last file has one segment a record and small ids, and so have the held-out records of the first."""
  words = vocabulary.load(vocabulary_directory)
  last = words.piece(words.size - 1)
  rare = next(text for n in range(1, 99) if not is_heldout(text := " ".join([last] * n)))
  short = [text for n in range(99) if not is_heldout(text := f"the {n}")][:20]
  held = next(text for n in range(99) if is_heldout(text := f"of {'a ' * 40}{n}"))
  (tmp_path / "a.txt").write_text("\n\n".join([rare, *short, held]))
  (tmp_path / "b.txt").write_text("the people " * 60)
  flags = [f"--source={tmp_path}/*.txt", f"--vocabulary={vocabulary_directory}", f"--output={tmp_path}/o"]
  flags += ["--packing=segments", "--length=64", "--heldout_fraction=0.3", "--workers=1"]
  assert prepare.main(flags) == 0
  made = manifest.read(tmp_path / "o")
  all_rows = [rows_of(tmp_path / "o", split, length=64)[0] for split in pipeline.SPLITS]
  begins = [(rows == words.special_ids.cls).sum(axis=1) for rows in all_rows]
  assert all_rows[0].max() == made.max_id == words.size - 1 > all_rows[1].max()
  assert begins[0].max() == made.counts[manifest.MOST_SEGMENTS] > begins[1].max() == 1
  assert made.counts[manifest.SEGMENTS] == sum(map(np.sum, begins)) > sum(map(len, begins))


def is_heldout(text: str) -> bool:
  return pipeline.document_fraction([text.strip()], "heldout", 0) < 0.3


def test_a_vocabulary_is_trained_on_training_documents_alone_and_its_flags_are_settings(corpus, tmp_path):
  flags = [f"--source={corpus}/*.txt", f"--output={tmp_path}/o", "--length=32", "--workers=1"]
  flags += ["--heldout_fraction=0.5", "--seed=1"]
  asked = ["--train_vocabulary_size=140", "--train_vocabulary_cased"]
  assert prepare.main([*flags, *asked]) == 0
  training = [d for d in DOCUMENTS if pipeline.document_fraction(d, "heldout", 1) >= 0.5]
  assert 60 < len(training) < 120
  expected = vocabulary_train.train(
    lines(training), tmp_path / "expected", kind="sentencepiece", cased=True, size=140
  )
  made = manifest.read(tmp_path / "o").vocabulary
  assert (made.digest, made.size, made.cased) == (expected.digest, 140, True)
  others = [[asked[0]], [asked[1]], [*asked, "--train_vocabulary_size=141"]]
  others += [[*asked, "--train_vocabulary_kind=wordpiece"], [f"--vocabulary={tmp_path}/expected"]]
  codes = [prepare.main([*flags, *other]) for other in (asked, *others)]
  assert codes == [0, *[errors.ConfigError.exit_code] * 5]


def test_a_finished_preparation_is_left_alone_and_another_value_of_a_flag_is_another_one(
  prepared, corpus, vocabulary_directory, tmp_path, capsys
):
  before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
  assert prepare.main(arguments(corpus, vocabulary_directory, prepared)) == 0
  assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before
  values = {"length": 16, "packing": "none", "seed": 1, "heldout_fraction": 0.2, "fraction": 0.5, "limit": 3}
  values |= {"text_field": "body", "module": "tasks.py", "source": f"{corpus}/part0.txt", "clean": "exact"}
  failures = []
  for name, value in values.items():
    code = prepare.main(arguments(corpus, vocabulary_directory, prepared, f"--{name}={value}"))
    said = capsys.readouterr().err
    if code != errors.ConfigError.exit_code or f"{name}: " not in said:
      failures.append(f"{name}: {code} {said}")
  assert not failures, "\n".join(failures)
  module, codes = tmp_path / "tasks.py", set()  # and its content
  for content in ("a = 1\n", "a = 2\n", "a = 1\n"):
    module.write_text(content)
    flags = arguments(corpus, vocabulary_directory, tmp_path / "out", f"--module={module}")
    codes.add(prepare.settings_of(prepare.parse(flags))["module_code"])
  assert len(codes) == 2


def test_killed_at_any_moment_and_started_again_gives_the_same_bytes(
  prepared, corpus, vocabulary_directory, tmp_path
):
  output = tmp_path / "killed"
  flags = arguments(corpus, vocabulary_directory, output, "--workers=2")
  codes = []
  # Moments a kill can hit: nothing there yet, in the work on units, and between shards and manifest.
  for sign in ("work/lock", "work/unit-000000.json", "train-*.arrayrecord"):
    process = subprocess.Popen(
      [sys.executable, "-m", "data.prepare", *flags], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(output.glob(sign)):
      time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    codes.append(process.wait())
  assert codes[0] == -signal.SIGKILL  # a later one may find the work done before it is there
  deadline = time.monotonic() + 20
  while time.monotonic() < deadline:  # workers that outlive their parent would still write
    if prepare.main(flags) == 0:  # by two workers, and `prepared` by one
      break
  assert digests(output) == digests(prepared)


def test_what_is_missing_is_made_again(prepared, corpus, vocabulary_directory, tmp_path, monkeypatch):
  output = tmp_path / "output"
  with monkeypatch.context() as patch:
    patch.setattr(prepare.manifest, "write", stop)  # everything but the manifest is there
    assert prepare.main(arguments(corpus, vocabulary_directory, output)) == 130
  shutil.copytree(output, tmp_path / "whole")
  for lost in (
    ["work/unit-000001.json"],
    ["train-00000-of-00003.arrayrecord"],
    ["vocabulary/sp.model", "vocabulary/vocabulary.json", "vocabulary"],
    ["work/unit-000002.train", "work/unit-000002.json"],
  ):
    shutil.rmtree(output)
    shutil.copytree(tmp_path / "whole", output)
    for name in lost:
      (output / name).rmdir() if (output / name).is_dir() else (output / name).unlink()
    for left in (".vocabulary.1234.part", "work/unit-000000.abcdef01.part"):  # by killed processes
      (output / left).mkdir()
    assert prepare.main(arguments(corpus, vocabulary_directory, output)) == 0, lost
    assert digests(output) == digests(prepared), lost
    assert not list(output.glob(".*"))


def test_text_of_one_document_is_held_out_by_blocks(corpus, vocabulary_directory, tmp_path):
  (tmp_path / "one.txt").write_text((corpus / "part0.txt").read_text().replace("\n\n", "\n"))
  flags = [f"--source={tmp_path}/one.txt", f"--vocabulary={vocabulary_directory}", "--length=32"]
  assert prepare.main([*flags, f"--output={tmp_path}/one", "--workers=1"]) == 0
  made = manifest.read(tmp_path / "one")
  rows = {}
  for split in pipeline.SPLITS:
    rows[split], pad = rows_of(tmp_path / "one", split)
    counts = np.bincount(rows[split][rows[split] != pad], minlength=150)
    assert counts.sum() == made.splits[split].tokens == made.counts[f"{split}_tokens"]
    assert made.splits[split].records == made.counts[f"{split}_records"] == len(rows[split])
    if split == "train":
      np.testing.assert_array_equal(np.load(tmp_path / "one" / "unigram.npy"), counts)
  all_rows = np.concatenate(list(rows.values()))
  assert made.counts["documents"] == 1
  assert made.counts["heldout_blocks"] == len(rows["heldout"]) == int(0.02 * len(all_rows)) > 1
  assert len({tuple(row) for row in all_rows}) == len(all_rows)  # no block is on both sides


def test_text_of_two_blocks_has_one_on_each_side_and_of_one_block_none(vocabulary_directory, tmp_path):
  for number, fraction, expected in ((2, 0.02, [1, 1]), (1, 0.02, [1, 0]), (3, 0.7, [1, 2]), (3, 0, [3, 0])):
    (tmp_path / "a.txt").write_text("it is the time.\n" * number)
    flags = [f"--source={tmp_path}/a.txt", f"--vocabulary={vocabulary_directory}", "--packing=eos"]
    output = tmp_path / f"{number}-{fraction}"
    assert prepare.main([*flags, f"--output={output}", f"--heldout_fraction={fraction}", "--workers=1"]) == 0
    made = manifest.read(output)
    assert [made.splits[split].records for split in pipeline.SPLITS] == expected, number


def test_a_fraction_and_a_limit_take_fewer_documents(corpus, vocabulary_directory, tmp_path):
  half = tmp_path / "half"
  assert prepare.main(arguments(corpus, vocabulary_directory, half, "--fraction=0.5")) == 0
  expected = sum(pipeline.document_fraction(document, "fraction", 0) < 0.5 for document in DOCUMENTS)
  assert 60 < manifest.read(half).counts["documents"] == expected < 120
  few = tmp_path / "few"
  assert prepare.main(arguments(corpus, vocabulary_directory, few, "--limit=5")) == 0
  assert manifest.read(few).counts["documents"] == 15


def test_text_is_prepared_without_tensorflow_and_jax(corpus, vocabulary_directory, tmp_path):
  program = (
    "import json, sys\nfrom data.prepare import __main__ as prepare\n"
    f"code = prepare.main({arguments(corpus, vocabulary_directory, tmp_path / 'o')!r})\n"
    "heavy = {'tensorflow', 'seqio', 'tensorflow_datasets', 'jax', 'grain', 'flax'} & set(sys.modules)\n"
    "print(code, sorted(heavy))\n"
  )
  done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
  assert done.stdout == "0 []\n"


def test_a_worker_that_dies_after_its_last_unit_holds_nothing_up():
  """Eight times, because the one that is killed must hold the lock of the queue."""
  program = (
    "import multiprocessing, os, signal\nfrom data.prepare import engine\n"
    "for number in range(8):\n"
    "  with engine.pool(2) as pool:\n"
    "    print(pool.map(abs, [-1, -2, -3], name='count'))\n"
    "    os.kill(multiprocessing.active_children()[number % 2].pid, signal.SIGKILL)\n"
  )
  command = [sys.executable, "-c", program]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
  assert done.stdout == "[1, 2, 3]\n" * 8
