"""Edge probing: what a span is, how answers are counted, and the tasks of a treebank."""

import numpy as np
import pytest

from pretrain.analysis import edges
from pretrain.analysis.edges import Annotated, Target


def test_a_span_is_the_mean_of_its_words_and_two_are_joined():
  states = np.asarray([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])[..., None]  # of three words after two layers
  part = [
    Annotated(("a", "b", "c"), (Target(((0, 2),), ("x",)),)),
    Annotated(("d", "e", "f"), (Target(((1, 2),), ("y", "z")),)),
  ]
  found, labels = edges.vectors(lambda sentences: [states for _ in sentences], part)
  np.testing.assert_array_equal(found, [[[2.0], [20.0]], [[3.0], [30.0]]])
  assert labels == [("x",), ("y", "z")]
  two = [Annotated(("a", "b", "c"), (Target(((2, 3), (0, 2)), ("x",)),))]
  np.testing.assert_array_equal(edges.vectors(lambda _: [states], two)[0], [[[8.0, 2.0], [80.0, 20.0]]])


def test_f1_counts_labels_that_are_wrong_and_labels_that_are_missing():
  gold = [("a",), ("b", "c")]
  assert edges.f1(gold, gold) == 1.0 and edges.f1(gold, [("x",), ()]) == 0.0
  # Two are right, of three that there are and of four that were said.
  assert edges.f1(gold, [("a", "b", "c"), ("b",)]) == pytest.approx(4 / 7)


def test_tasks_of_a_treebank_ask_about_tags_and_about_words_with_their_heads(tmp_path):
  row = "1\tba\t_\tNOUN\t_\t_\t2\tnsubj:pass\t_\t_\n2\tke\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
  (tmp_path / "UD_English-EWT").mkdir()
  for split, number in (("train", 3), ("test", 1)):
    (tmp_path / "UD_English-EWT" / f"x-ud-{split}.conllu").write_text(row * number)
  tags, relations = edges.find(tmp_path, 2)
  assert (tags.name, relations.name) == ("part of speech", "dependency")
  assert [len(task.train) for task in (tags, relations)] == [2, 2] and len(tags.test) == 1
  assert tags.test == [Annotated(("ba", "ke"), (Target(((0, 1),), ("NOUN",)), Target(((1, 2),), ("VERB",))))]
  assert relations.test == [Annotated(("ba", "ke"), (Target(((0, 1), (1, 2)), ("nsubj",)),))]
