"""Words given apart have the ids of running text, where a vocabulary reads the space before a word."""

import numpy as np
import pytest

from data.vocabulary import Vocabulary
from finetune.own import spans, tagging
from tests import byte_level
from tests.finetune.own.test_plain import rows, schema

WORDS = ["The", "people", "make", "é", "."]
ROW = {"text": WORDS, "label": [{"span1": [1, 3], "label": "x"}]}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
  return byte_level.imported(tmp_path_factory.mktemp("byte_level"))


def test_a_tagger_reads_the_ids_of_running_text(vocabulary):
  made = tagging.inputs(rows(ROW), schema("tagging", labels=("x", "y"), max_length=64), vocabulary)
  (ids,), (at,) = made.examples.ids, made.examples.token_fields[tagging.WORD]
  assert ids.tolist() == vocabulary.with_special_ids(vocabulary.encode(" ".join(WORDS)))
  firsts = [vocabulary.letters(int(ids[where])) for where in np.flatnonzero(at)]
  assert [begins for _, begins in firsts] == [False, True, True, True, True]
  assert at[at > 0].tolist() == [1, 2, 3, 4, 5]


def test_spans_read_the_same(vocabulary):
  made = spans.inputs(rows(ROW), schema("span_pairs", labels=("x", "y"), max_length=64), vocabulary)
  (ids,), (marks,) = made.examples.ids, made.examples.token_fields[spans.SPAN]
  assert ids.tolist() == vocabulary.with_special_ids(vocabulary.encode(" ".join(WORDS)))
  assert vocabulary.decode(ids[marks > 0]) == " people make"
