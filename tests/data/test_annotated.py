"""Annotated text: what is read of each layout, which pairs are made of it, and what is refused."""

import gzip
import json

import pytest

from data import annotated
from tests.data.conftest import refused

_TREEBANK = """\
# sent_id = 1
# text = The keys of Tom is not here .
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tkey\tkey\tNOUN\tNN\tNumber=Sing\t5\tnsubj\t_\t_
3-4\tisn't\t_\t_\t_\t_\t_\t_\t_\t_
3\tis\tbe\tAUX\tVBZ\t_\t5\tcop\t_\t_
4\tn't\tnot\tPART\tRB\t_\t5\tadvmod\t_\t_
5\there\there\tADV\tRB\t_\t0\troot\t_\t_

# text = a comment of the ten words as the columns are
1\tTom\tTom\tPROPN\tNNP\t_\t4\tnsubj:outer\t_\t_
2\tand\tand\tCCONJ\tCC\t_\t3\tcc\t_\t_
3\tAnn\tAnn\tPROPN\tNNP\t_\t1\tconj\t_\t_
4\twas\tbe\tVERB\tVBD\t_\t0\troot\t_\t_

1\tShe\tshe\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2\thas\thave\tVERB\tVBZ\t_\t0\troot\t_\t_

1\tDogs\tdog\tNOUN\tNNS\t_\t3\tnsubj\t_\t_
2\tdid\tdo\tAUX\tVBD\t_\t3\taux\t_\t_
3\thave\thave\tVERB\tVB\t_\t0\troot\t_\t_
"""
_RELATIONS = """\
1\t"The <e1>child</e1> was put into the <e2>wooden cradle</e2>."
Entity-Destination(e1,e2)
Comment: none

2\t"A <e1>b</e1>-<e2>c</e2>"
Other
Comment:
"""


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "UD_English-EWT").mkdir()
  with gzip.open(tmp_path / "UD_English-EWT" / "en_ewt-ud-test.conllu.gz", "wt") as file:
    file.write(_TREEBANK)
  (tmp_path / "SemEval2010_task8").mkdir()
  for name in ("TRAIN_FILE", "TEST_FILE_FULL"):
    (tmp_path / "SemEval2010_task8" / f"{name}.TXT").write_text(_RELATIONS)
  return tmp_path


def test_words_tags_heads_and_relations_without_comments_and_contractions(folder):
  assert annotated.treebank(folder, "train") is None
  found = annotated.sentences(annotated.treebank(folder, "test"))
  assert [sentence.words for sentence in found][:2] == [
    ("The", "key", "is", "n't", "here"),
    ("Tom", "and", "Ann", "was"),
  ]
  assert found[0].tags == ("DET", "NOUN", "AUX", "PART", "ADV") and found[0].heads == (1, 4, 4, 4, -1)
  assert found[1].relations == ("nsubj", "cc", "conj", "root")


def test_pairs_are_made_where_a_single_noun_before_the_first_verb_decides(folder):
  (pair,) = annotated.agreement_pairs(annotated.sentences(annotated.treebank(folder, "test")))
  assert pair.good == ("The", "key", "is", "n't", "here")
  assert pair.bad == ("The", "key", "are", "n't", "here")


def test_marked_spans_are_words_wherever_the_marks_stand(folder):
  train, test = annotated.relation_files(folder)
  first, second = annotated.relations(train)
  assert first.words[slice(*first.spans[1])] == ("wooden", "cradle") and first.words[-1] == "."
  assert first.label == "Entity-Destination(e1,e2)" and second.words == ("A", "b", "-", "c")
  assert second.spans == ((1, 2), (3, 4)) and second.label == "Other"
  assert annotated.relation_files(folder / "UD_English-EWT") is None and annotated.relations(test)


def test_pairs_of_blimp_are_read_by_file(tmp_path):
  row = {"sentence_good": "A cat sleeps .", "sentence_bad": "A cat sleep ."}
  (tmp_path / "blimp").mkdir()
  (tmp_path / "blimp" / "agreement_1.jsonl").write_text(json.dumps(row) + "\n")
  pairs = annotated.minimal_pairs(tmp_path)
  assert list(pairs) == ["agreement_1"] and pairs["agreement_1"][0].bad == ("A", "cat", "sleep", ".")


def test_what_is_no_treebank_or_has_no_marks_is_refused_with_its_line(tmp_path):
  path = tmp_path / "x.conllu"
  for line, words in (
    ("1\ta\tb\n", "3 columns"),
    ("1\ta\ta\tX\tX\t_\tone\tdet\t_\t_\n", "no number"),
    ("1\ta\ta\tX\tX\t_\t2\tdet\t_\t_\n", "no word"),
  ):
    path.write_text(line)
    code, message = refused(lambda: annotated.sentences(path))
    assert code == 3 and "x.conllu, line 1" in message and words in message
  path = tmp_path / "TRAIN_FILE.TXT"
  for text, words in (('1\t"No marks."\nOther\n', "line 2"), ("something else\n", "no sentence")):
    path.write_text(text)
    code, message = refused(lambda: annotated.relations(path))
    assert code == 3 and words in message
