"""Our Tasks as seqio's users meet them; `notebook.py` works with them in one process of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.data.conftest import ROOT


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  directory = tmp_path_factory.mktemp("tasks")
  command = [sys.executable, "-m", "tests.data.tasks.notebook", str(directory)]
  there = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
  done = subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, check=False, env=there, timeout=500
  )
  made = directory / "results.json"
  assert made.is_file(), done.stderr[-3000:]
  return json.loads(made.read_text()) | {"exit code": done.returncode, "stderr": done.stderr[-3000:]}


@pytest.mark.parametrize("kind", ["plain", "official", "wordpiece", "byte_level"])
def test_a_vocabulary_gives_the_same_ids_in_seqio(results, kind):
  found = results[f"vocabulary {kind}"]
  assert found.pop("others") == 1  # itself
  assert all(found.values()), found


@pytest.mark.parametrize("kind", ["plain", "official", "wordpiece", "byte_level"])
@pytest.mark.parametrize("mode", ["complete", "none", "concat", "segments"])
def test_the_blocks_of_a_task_sorted_by_key_are_the_records(results, kind, mode):
  is_equal, files = results[f"packed {kind}_{mode}"]
  assert is_equal and files > 3


def test_a_task_is_its_units_one_after_another_and_has_the_held_out_documents(results):
  assert results["packed, as a whole"] and results["packed, held out"]


def test_blocks_by_hand(results):
  assert results["by hand"]


def test_a_data_source_of_the_users_is_packed_as_its_texts_are_prepared(results):
  assert results["data source"]


def test_the_order_of_shuffled_blocks_is_a_function_of_the_seed(results):
  same, other, permuted = results["shuffled"]
  assert same and not other and permuted


@pytest.mark.parametrize(
  "what", ["batches", "shards", "a million steps on", "epoch", "order of the files", "examples"]
)
def test_prepared_records_through_seqio_are_the_trainers_batches(results, what):
  assert results["prepared"][what]


def test_a_mixture_of_prepared_tasks_is_the_same_stream_for_the_same_seed(results):
  same, other = results["mixture"]
  assert same and not other


def test_a_row_is_padded_with_our_pad_and_has_positions_and_a_segment(results):
  found = results["converter"]
  size, ids = found["size"], found["encoder_input_tokens"]
  assert 4 < size < 16 and ids[0] == 0 and ids[size - 1] == 2 and 1 not in ids[:size]
  assert ids[size:] == [1] * (16 - size)
  assert found["encoder_positions"] == [*range(size), *[0] * (16 - size)]
  assert found["encoder_segment_ids"] == [1] * size + [0] * (16 - size)


def test_examples_that_are_ids_are_packed_as_a_sentence_each(results):
  code, *records = results["tokenised sentences"]
  assert code == 0
  long = [*range(5, 45)]  # 40 ids: [CLS], 30 of them, [SEP], and the rest
  assert [0, *long[:30], 2] in records and [0, *long[30:], 2] in records
  assert len(records) == 3 and sum(record.count(2) for record in records) == 6  # 4 sentences, 2 borders


def test_examples_that_begin_with_cls_are_records_without_their_padding(results):
  assert results["tokenised blocks"] == [0, [0, 9, 10, 2], [0, 11, 2]]
  assert results["tokens of blocks"] == 4 + 3


@pytest.mark.parametrize("name", ["broken", "long", "outside"])
def test_ids_that_no_record_may_hold_are_refused(results, name):
  assert results[f"tokenised {name}"] == [3]


def test_a_packed_task_is_stored_as_its_text_would_be(results):
  assert results["tokenised flat"]


@pytest.mark.parametrize(
  ("name", "code", "words"),
  [
    ("no vocabulary", 2, ["gives ids; add --vocabulary=", "/plain"]),
    ("another vocabulary", 2, ["gives ids of another vocabulary", "; use --vocabulary=", "/plain"]),
    ("another packing", 2, ["packed as 'none'; use --length=32 --packing=none"]),
    (
      "stock",
      3,
      ["data.tasks.DirectoryVocabulary(DIR); targets has SentencePieceVocabulary", "without [MASK]"],
    ),
  ],
)
def test_ids_that_do_not_fit_the_command_are_refused_before_anything_is_written(results, name, code, words):
  found, line, is_there = results[f"refused {name}"]
  assert found == code and not is_there
  assert all(word in line for word in words), line


@pytest.mark.parametrize(
  ("name", "code", "words"),
  [
    ("no vocabulary yet", 3, "vocabularies/wikipedia_books holds no vocabulary"),
    ("no data", 3, "\n  --download\n"),
    ("no seed", 2, "shuffle=True with seed=None gives another order each time; pass seed=0"),
    ("no seed, prepared", 2, "seed=None"),
    ("no length", 2, "lack 'inputs'; pass {'inputs': 32}"),
    ("short", 2, "would cut; pass {'inputs': 32}"),
    ("short, prepared", 2, "would cut;"),
    ("pack", 2, "pass pack=False"),
    ("no pad", 2, "EncoderConverter.of('NAME')()"),
    ("unprepared", 3, "has no manifest.json"),
    ("packing", 2, "did you mean 'complete'?"),
    ("length", 2, "at least 8 tokens"),
    ("seed", 2, "a seed of at least 0"),
    ("nothing held out", 3, "tiny.txt is none; use a larger fraction, or prepared records"),
    ("ids", 3, "seqio:flat has ids"),
    ("arrayrecord", 2, "as TFRecord and ignores --output_format; remove the flag"),
    ("arrayrecord", 2, "--source=seqio:plain_complete --module=FILE --length=32"),
  ],
)
def test_what_would_lose_tokens_or_the_order_is_refused_in_one_line(results, name, code, words):
  found, message = results[f"refused {name}"]
  assert found == code and words in message and "\n" not in message.replace("\n  ", ""), message


def test_corpora_are_registered_before_their_data_is_there(results):
  corpora = ("web_160gb", "wikipedia_books")
  assert results["names"] == [f"{corpus}_packed_{length}" for corpus in corpora for length in (128, 512)]


def test_a_packed_task_may_be_cached_by_seqio_and_records_are_a_cache(results):
  assert results["cached as"] == [True, False]


def test_a_notebook_keeps_its_accelerators(results):
  assert results["hidden"] is None


def test_a_program_may_end_while_records_are_read_ahead(results):
  assert results["exit code"] == 0, results["stderr"]
