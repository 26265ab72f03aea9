"""Text to records, end to end: the same bytes whatever happens."""

import collections
import hashlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from data import errors, manifest, records, sources, vocabulary
from data.prepare import command as prepare
from data.prepare import pipeline, preparation, sentences, shards, training_text, workers
from tests.data.conftest import ROOT, arguments, make_documents


def digests(directory):
  """Returns the sha256 of every file under `directory`."""
  files = sorted(path for path in pathlib.Path(directory).rglob("*") if path.is_file())
  return {str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_the_manifest_describes_the_files(prepared):
  made = manifest.read(prepared)
  assert made.length == 32
  assert made.counts["documents"] == 180
  assert made.splits["train"].records > made.splits["heldout"].records > 0
  for split in made.splits.values():
    assert sum(shard.records for shard in split.shards) == split.records
    for shard in split.shards:
      content = (prepared / shard.name).read_bytes()
      assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
  assert not (prepared / "work").exists()


def test_every_token_arrives_once_and_documents_stay_on_one_side(prepared):
  words = vocabulary.load(prepared / "vocabulary")
  special = words.special_ids
  expected = {split: np.zeros(words.size, np.int64) for split in pipeline.SPLITS}
  for document in (document for number in range(3) for document in make_documents(60, seed=number)):
    is_heldout = pipeline.document_fraction(document, "heldout", 0) < 0.1
    text = [sentence for line in document for sentence in sentences.split(line, collections.Counter())]
    ids = [i for sentence in words.encode_batch(text) for i in sentence]
    expected["heldout" if is_heldout else "train"] += np.bincount(ids, minlength=words.size)
  for split in pipeline.SPLITS:
    source = records.PackedRecords(prepared, split=split, length=32, seed=0)
    rows = source.rows(0, len(source))
    assert (rows[:, 0] == special.cls).all()
    assert not (rows[:, 1:] == special.cls).any()
    found = np.bincount(rows.ravel(), minlength=words.size)
    found[[special.cls, special.pad, special.sep]] = 0
    np.testing.assert_array_equal(found, expected[split])


def test_unigram_counts_are_those_of_the_training_records(prepared):
  source = records.PackedRecords(prepared, length=32, seed=0)
  rows = source.rows(0, len(source))
  counts = np.bincount(rows.ravel(), minlength=source.manifest.vocabulary.size)
  counts[source.pad] = 0
  np.testing.assert_array_equal(np.load(prepared / "unigram.npy"), counts)
  assert counts.sum() == source.manifest.splits["train"].tokens
  assert counts.nonzero()[0].max() <= source.manifest.max_id


def test_two_workers_give_the_same_bytes_as_one(prepared, corpus, vocabulary_directory, tmp_path):
  assert prepare.main(arguments(corpus, vocabulary_directory, tmp_path / "two", "--workers=2")) == 0
  assert digests(tmp_path / "two") == digests(prepared)


def test_records_of_segments_are_counted_and_the_same_by_any_number_of_workers(
  corpus, vocabulary_directory, tmp_path, capsys
):
  for number in (1, 2):
    flags = ["--packing=segments", "--length=64", f"--workers={number}"]
    assert prepare.main([*arguments(corpus, vocabulary_directory, tmp_path / str(number)), *flags]) == 0
  assert digests(tmp_path / "1") == digests(tmp_path / "2")
  made, begins = manifest.read(tmp_path / "1"), []
  cls = vocabulary.load(vocabulary_directory).special_ids.cls
  for split in pipeline.SPLITS:
    source = records.PackedRecords(tmp_path / "1", split=split, length=64, seed=0)
    begins += (source.rows(0, len(source)) == cls).sum(axis=1).tolist()
  assert (made.counts[manifest.SEGMENTS], made.counts[manifest.MOST_SEGMENTS]) == (sum(begins), max(begins))
  assert sum(begins) > len(begins)
  expected = f"segments    {sum(begins):,}, {np.mean(begins):.1f} a record, at most {max(begins)}\n"
  assert capsys.readouterr().err.count(expected) == 2


def test_another_seed_gives_another_order_of_the_same_records(corpus, vocabulary_directory, tmp_path):
  rows = []
  for seed in (0, 1):
    output = tmp_path / str(seed)
    flags = arguments(corpus, vocabulary_directory, output, f"--seed={seed}", "--heldout_fraction=0")
    assert prepare.main(flags) == 0
    source = records.PackedRecords(output, length=32, seed=0)
    rows.append(source.rows(0, len(source)).tolist())
  assert rows[0] != rows[1]
  assert sorted(rows[0]) == sorted(rows[1])


def test_a_preparation_with_another_value_of_these_flags_is_another_one(
  prepared, corpus, vocabulary_directory, capsys
):
  values = {"length": 16, "packing": "none", "seed": 1, "heldout_fraction": 0.2, "fraction": 0.5, "limit": 3}
  values |= {"text_field": "body", "module": "tasks.py", "source": f"{corpus}/part0.txt"}
  for name, value in values.items():
    flags = arguments(corpus, vocabulary_directory, prepared, f"--{name}={value}")
    assert prepare.main(flags) == errors.ConfigError.exit_code, name
    assert name in capsys.readouterr().err


def test_an_edited_module_is_another_setting(corpus, vocabulary_directory, tmp_path):
  module, codes = tmp_path / "tasks.py", set()
  for content in ("a = 1\n", "a = 2\n", "a = 1\n"):
    module.write_text(content)
    flags = arguments(corpus, vocabulary_directory, tmp_path / "out", f"--module={module}")
    codes.add(preparation.settings_of(prepare.parse(flags))["module_code"])
  assert len(codes) == 2


def test_the_vocabulary_is_trained_on_training_documents_alone_which_the_seed_decides(corpus, tmp_path):
  request, documents = (
    sources.Request(f"{corpus}/*.txt"),
    [d for n in range(3) for d in make_documents(60, n)],
  )
  trained_on = []
  for seed in (0, 1):
    job = pipeline.Job(request, str(tmp_path), 32, "complete", seed, heldout_fraction=0.5, fraction=1.0)
    training = [d for d in documents if pipeline.document_fraction(d, "heldout", seed) >= 0.5]
    assert 60 < len(training) < 120  # of 180
    expected = [s for d in training for line in d for s in sentences.split(line, collections.Counter())]
    source = training_text.Source(job, sources.plan(request).units)
    with training_text.sample([source], workers.Pool(None)) as text:
      trained_on.append(list(text))
    assert trained_on[-1] == expected
  assert trained_on[0] != trained_on[1]


def test_many_shards_hold_every_record_once(prepared, corpus, vocabulary_directory, tmp_path, monkeypatch):
  monkeypatch.setattr(shards, "SHARD_BYTES", 5_000)
  output = tmp_path / "many"
  assert prepare.main(arguments(corpus, vocabulary_directory, output)) == 0
  assert len(manifest.read(output).splits["train"].shards) > 3
  many, one = (records.PackedRecords(path, length=32, seed=0) for path in (output, prepared))
  assert len(many) == len(one)
  assert sorted(many.rows(0, len(many)).tolist()) == sorted(one.rows(0, len(one)).tolist())


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
    if prepare.main(flags) == 0:
      break
  assert digests(output) == digests(prepared)


@pytest.mark.parametrize("lost", ["unit-000001.json", "train", "vocabulary", "unit-000002.train.ids"])
def test_what_is_missing_is_made_again(lost, prepared, corpus, vocabulary_directory, tmp_path, monkeypatch):
  output = tmp_path / "again"
  flags = arguments(corpus, vocabulary_directory, output)
  with monkeypatch.context() as patch:

    def stop(*_):
      raise KeyboardInterrupt

    patch.setattr(manifest, "write", stop)  # everything but the manifest is there
    assert prepare.main(flags) == 130
  if lost == "train":
    next(output.glob("train-*")).unlink()
  elif lost == "vocabulary":
    shutil.rmtree(output / "vocabulary")
  else:
    (output / "work" / lost).unlink()
    if lost.endswith("ids"):
      (output / "work" / "unit-000002.json").unlink()
  assert prepare.main(flags) == 0
  assert digests(output) == digests(prepared)


def test_a_half_written_shard_never_has_its_final_name(
  corpus, vocabulary_directory, tmp_path, monkeypatch, capsys
):
  def stop(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(manifest, "Shard", stop)  # described before it gets its name
  assert prepare.main(arguments(corpus, vocabulary_directory, tmp_path / "o")) == 130
  assert (tmp_path / "o" / "work" / "unit-000002.json").is_file()
  assert not list((tmp_path / "o").glob("*.arrayrecord"))
  assert "run the same command again" in capsys.readouterr().err


def test_a_finished_preparation_is_left_alone(prepared, corpus, vocabulary_directory, capsys):
  before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
  assert prepare.main(arguments(corpus, vocabulary_directory, prepared)) == 0
  assert "finished already" in capsys.readouterr().err
  assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before


def test_a_vocabulary_is_trained_where_none_is_given(corpus, tmp_path):
  flags = [f"--source={corpus}/*.txt", f"--output={tmp_path}/o", "--length=32", "--workers=1"]
  assert prepare.main([*flags, "--train_vocabulary_size=150"]) == 0
  words = vocabulary.load(tmp_path / "o" / "vocabulary")
  assert (words.size, words.cased) == (150, False)
  assert manifest.read(tmp_path / "o").vocabulary.digest == words.digest


def test_text_of_one_document_is_held_out_by_blocks(corpus, vocabulary_directory, tmp_path):
  (tmp_path / "one.txt").write_text((corpus / "part0.txt").read_text().replace("\n\n", "\n"))
  for name in ("one", "two"):
    flags = [f"--source={tmp_path}/one.txt", f"--vocabulary={vocabulary_directory}", "--length=32"]
    flags += [f"--output={tmp_path}/{name}", f"--workers={1 + (name == 'two')}"]
    assert prepare.main(flags) == 0
  assert digests(tmp_path / "one") == digests(tmp_path / "two")
  made = manifest.read(tmp_path / "one")
  sides = {s: records.PackedRecords(tmp_path / "one", split=s, length=32, seed=0) for s in pipeline.SPLITS}
  rows = {split: side.rows(0, len(side)) for split, side in sides.items()}
  all_rows = np.concatenate(list(rows.values()))
  assert made.counts["documents"] == 1
  assert made.counts["heldout_blocks"] == len(rows["heldout"]) == int(0.02 * len(all_rows)) > 0
  assert len({tuple(row) for row in all_rows}) == len(all_rows)  # no block is on both sides
  for split in pipeline.SPLITS:
    counts = np.bincount(rows[split][rows[split] != sides[split].pad], minlength=150)
    assert counts.sum() == made.splits[split].tokens == made.counts[f"{split}_tokens"]
    if split == "train":
      np.testing.assert_array_equal(np.load(tmp_path / "one" / "unigram.npy"), counts)


def test_text_of_two_blocks_has_one_on_each_side_and_of_one_block_none(vocabulary_directory, tmp_path):
  for sentences_, expected in ((2, [1, 1]), (1, [1, 0])):
    (tmp_path / "a.txt").write_text("it is the time.\n" * sentences_)
    flags = [f"--source={tmp_path}/a.txt", f"--vocabulary={vocabulary_directory}", "--packing=eos"]
    assert prepare.main([*flags, f"--output={tmp_path}/{sentences_}", "--workers=1"]) == 0
    made = manifest.read(tmp_path / str(sentences_))
    assert [made.splits[split].records for split in pipeline.SPLITS] == expected


def test_a_fraction_and_a_limit_take_fewer_documents(corpus, vocabulary_directory, tmp_path):
  half = tmp_path / "half"
  assert prepare.main(arguments(corpus, vocabulary_directory, half, "--fraction=0.5")) == 0
  assert 60 < manifest.read(half).counts["documents"] < 120  # of 180; 4 standard deviations
  few = tmp_path / "few"
  assert prepare.main(arguments(corpus, vocabulary_directory, few, "--limit=5")) == 0
  assert manifest.read(few).counts["documents"] == 15


def test_of_a_fraction_of_the_documents_the_same_share_is_held_out(corpus, tmp_path):
  request, counts = sources.Request(f"{corpus}/*.txt"), collections.Counter()
  job = pipeline.Job(request, str(tmp_path), 32, "complete", 0, heldout_fraction=0.2, fraction=0.5)
  chunks = [
    chunk for unit in sources.plan(request).units for chunk in pipeline.text_chunks(job, unit, counts)
  ]
  heldout, train = (sum(len(chunk[split]) for chunk in chunks) for split in ("heldout", "train"))
  assert heldout + train == counts["documents"]
  assert 0.1 < heldout / (heldout + train) < 0.3


def test_text_sources_never_import_tensorflow(prepared, corpus, vocabulary_directory, tmp_path):
  program = (
    "import json, sys\nfrom data.prepare import command as prepare\n"
    f"code = prepare.main({arguments(corpus, vocabulary_directory, tmp_path / 'o')!r})\n"
    "heavy = {'tensorflow', 'seqio', 'tensorflow_datasets', 'jax', 'grain', 'flax'} & set(sys.modules)\n"
    "print(json.dumps([code, sorted(heavy)]))\n"
  )
  result = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
  )
  assert json.loads(result.stdout) == [0, []]


def test_what_a_kill_left_of_a_vocabulary_goes(corpus, vocabulary_directory, tmp_path):
  (tmp_path / "o" / "work").mkdir(parents=True)
  (tmp_path / "o" / ".vocabulary.1234.part").mkdir()
  assert prepare.main(arguments(corpus, vocabulary_directory, tmp_path / "o")) == 0
  assert not list((tmp_path / "o").glob(".*"))
