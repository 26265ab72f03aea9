"""Tasks of a user's own as the child of a feed reads them; `streams.py` reads them all in one process."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.data.conftest import ROOT
from tests.data.feed.conftest import USER_TASKS


@pytest.fixture(scope="module")
def results(user_folder):
  script = USER_TASKS.with_name("streams.py")
  environment = os.environ | {"PYTHONPATH": str(ROOT)}
  ran = subprocess.run([sys.executable, script, user_folder], env=environment, capture_output=True, text=True)
  assert ran.returncode == 0, ran.stderr[-2000:]
  return json.loads((user_folder / "results.json").read_text())


def test_texts_become_the_blocks_of_their_lines_epoch_after_epoch(results):
  has_all, counts = results["lines"]
  assert has_all and sum(counts) == 400
  assert counts[0] >= 2  # 6.7 times on average; seqio repeats before it shuffles


def test_rows_of_segments_have_whole_texts(results):
  are_the_texts, number = results["segments"]
  assert are_the_texts and number > 300  # in 200 rows


def test_the_order_is_a_function_of_the_seed(results):
  assert results["again"] and not results["other seed"]  # other lines among the first, not only shuffled


def test_blocks_to_evaluate_on_are_the_first_of_the_validation_split_in_its_order(results):
  assert results["heldout"] and results["few"]
  assert results["none"] == ["", 0]


def test_a_mixture_has_its_rates(results):
  one, two = results["both"]
  assert one == pytest.approx(0.7, abs=0.04) and one + two == 1


def test_ids_are_packed_and_blocks_are_taken_as_they_are(results):
  assert results["ids"] == [True]
  assert results["packed"] == 0  # [CLS]


def test_the_feature_text_is_read_unless_another_is_named_as_by_data_prepare(results):
  assert results["default"] == [True, True]


def test_prepared_records_begin_at_any_batch_and_are_those_of_the_trainer(results):
  assert results["prepared"] == [True, True, True]


def test_facts_name_what_decides_the_blocks(results, user_folder):
  facts = results["facts"]
  module = hashlib.sha256((user_folder / "user_tasks.py").read_bytes()).hexdigest()
  assert (facts["source"], facts["module"], facts["records"]) == ("seqio:one", module, "")
  assert facts["versions"].keys() == {"seqio", "tensorflow", "tensorflow-datasets"}


def test_a_feed_that_begins_later_sends_the_same_batches(results):
  first, later = results["messages"]
  assert [content["number"] for content, _ in first] == [0, 1, 2, 3, 4]
  assert later[:2] == first[3:]
  read = np.asarray([rows for _, rows in first[:3]], "<i4")
  assert later[0][0]["before"] == first[2][0]["sha256"] == hashlib.sha256(read.tobytes()).hexdigest()


@pytest.mark.parametrize(
  ("name", "code", "message"),
  [
    (
      "no vocabulary",
      2,
      "seqio:one gives text, and no vocabulary is named; train one with `python -m data.voca",
    ),
    (
      "unknown",
      3,
      "--source=seqio:onn: unknown Task or Mixture 'onn'; did you mean 'one'? Known: both, brok",
    ),
    (
      "packing",
      2,
      "seqio Task 'packed' gives blocks of up to 32 tokens packed as 'complete'; use --length=32",
    ),
    (
      "short",
      3,
      "seqio:short ended after 2 blocks, although it is read with num_epochs=None; expected text,",
    ),
    (
      "bytes",
      3,
      "seqio:bytes cannot be read (ValueError: Task dataset has incorrect type for feature 'text'",
    ),
    ("broken", 3, "seqio:broken cannot be read ("),
  ],
)
def test_what_cannot_be_read_is_one_line(results, name, code, message):
  found, line = results[name]
  assert (found, line[: len(message)]) == (code, message)
  assert "\n" not in line.replace("\n  ", "")
  if name == "broken":
    assert "no such column" in line and line.endswith("correct the Task")
