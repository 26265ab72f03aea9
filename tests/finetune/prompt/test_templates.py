"""Templates, label words and their ids. Run: python -m pytest tests/finetune/prompt/test_templates.py"""

import pytest

from data.errors import ConfigError
from data.glue.tasks import TASKS
from data.vocabulary import train as vocabulary_train
from finetune import validate
from finetune.prompt import templates as prompt_templates
from finetune.prompt.templates import TEMPLATES, PromptWriter
from tests import byte_level
from tests.finetune.prompt.prompt_case import make_vocabulary, pieces_of


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  return make_vocabulary(tmp_path_factory.mktemp("words"), ("correct", "incorrect"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
  """Has '▁?' and '?', '▁,' and ',', and the words of inference as pieces."""
  text = [
    "yes yes, no no, maybe maybe, the dog the cat",
    "yes ? no ? maybe ? dog? cat? what ? is it?",
    "the dog , the cat , dog, cat,",
  ]
  directory = tmp_path_factory.mktemp("vocabulary") / "small"
  made = vocabulary_train.train(text * 50, directory, kind="sentencepiece", cased=False, size=58)
  assert made.encode("?") != made.encode("dog?")[1:]  # otherwise the tests say nothing
  return made


def written(words, task, sentences, **options):
  """The pieces of a prompt, and the piece at its gap."""
  prompt = PromptWriter(TEMPLATES[task], words).write(sentences, **options)
  return pieces_of(words, prompt.ids), words.piece(int(prompt.ids[prompt.position]))


def test_templates_are_those_of_the_paper(words):
  """Inference asks after the first sentence without its last character."""
  expected = {
    "mnli": (("a b.", "C d."), "a b ? [MASK] , c d . [SEP]"),
    "snli": (("a b.", "c"), "a b ? [MASK] , c [SEP]"),
    "sst2": (("a b .",), "a b . it was [MASK] . [SEP]"),
    "cola": (("a b.",), "a b . this is [MASK] . [SEP]"),
    "mrpc": (("a b.", "C"), "a b . [MASK] , c [SEP]"),
    "qqp": (("a?", "B?"), "a ? [MASK] , b ? [SEP]"),
    "stsb": (("a.", "B."), "a . [MASK] , b . [SEP]"),
    "qnli": (("a b?", "C d."), "a b ? [MASK] , c d . [SEP]"),
    "rte": (("a.", "B."), "a ? [MASK] , b . [SEP]"),
  }
  found = {task: (given, written(words, task, given)[0]) for task, (given, _) in expected.items()}
  assert found == expected and set(TEMPLATES) == set(expected) == set(validate.PROMPT_TASKS)
  word_id = PromptWriter(TEMPLATES["mnli"], words).word_ids[1]  # of a demonstration
  assert written(words, "mnli", ("a b.", "C d."), word_id=word_id) == ("a b ? yes , c d . [SEP]", "yes")
  sizes = {task: (template.max_length, template.num_samples) for task, template in TEMPLATES.items()}
  assert sizes == dict.fromkeys(TEMPLATES, (128, 16)) | {
    "mnli": (256, 4), "snli": (256, 4), "qqp": (128, 4), "rte": (256, 16),
  }  # fmt: skip
  assert [task for task, template in TEMPLATES.items() if template.is_regression] == ["stsb"]


def test_the_second_sentence_goes_on_in_lower_case_and_no_more_than_its_first_letter(tmp_path):
  words = make_vocabulary(tmp_path, ("A", "B", "No", "Yes", "Maybe"), cased=True)
  assert written(words, "mnli", ("A B.", "A B"))[0] == "A B ? [MASK] , a B [SEP]"


def test_what_stands_behind_a_word_has_the_pieces_of_running_text(sentencepiece):
  found, at_gap = written(sentencepiece, "mnli", ("the dog.", "The cat"))
  gap = sentencepiece.special_ids.mask
  assert at_gap == "[MASK]"
  running = sentencepiece.encode("the dog? yes, the cat")
  yes = PromptWriter(TEMPLATES["mnli"], sentencepiece).word_ids[1]
  assert yes in running
  replaced = [gap if i == yes else i for i in running]
  assert found == pieces_of(sentencepiece, [*replaced, sentencepiece.special_ids.sep])


def test_a_byte_level_vocabulary_gets_the_ids_of_running_text(tmp_path):
  text = ["Yes No Maybe yes no maybe", "the people make? Yes, the time is. It was great terrible"] * 50
  made = byte_level.imported(tmp_path, byte_level.tokenizer(text=text))
  writer = PromptWriter(TEMPLATES["mnli"], made)
  assert [made.piece(i) for i in writer.word_ids] == ["ĠNo", "ĠYes", "ĠMaybe"]
  prompt = writer.write(("The people.", "The time is."), word_id=writer.word_ids[1])
  assert prompt.ids.tolist() == [*made.encode("The people? Yes, the time is."), made.special_ids.sep]
  writer = PromptWriter(TEMPLATES["sst2"], made)
  prompt = writer.write(("The people.",), word_id=writer.word_ids[1])
  assert prompt.ids.tolist() == [*made.encode("The people. It was great."), made.special_ids.sep]


def test_what_is_too_long_is_cut_from_the_sentences_and_never_the_gap(words):
  writer = PromptWriter(TEMPLATES["mnli"], words)
  for room in range(4, 16):
    prompt = writer.write(("a b c d e f.", "g h i j"), room=room)
    found = pieces_of(words, prompt.ids).split()
    assert len(found) == min(room, 14)
    assert found[prompt.position - 1 : prompt.position + 2] == ["?", "[MASK]", ","] and found[-1] == "[SEP]"
    kept = "".join(found[: prompt.position - 1]), "".join(found[prompt.position + 2 : -1])
    assert "abcdef".startswith(kept[0]) and "ghij".startswith(kept[1])
    assert room >= 14 or abs(len(kept[0]) - len(kept[1])) <= 1 or kept[1] == "ghij"
  with pytest.raises(ConfigError, match=r"3 tokens .* alone has 4;.*\n  --config.prompt.max_length=128"):
    writer.write(("a.", "b"), room=3)


def test_words_stand_for_the_labels_that_the_data_side_reads_as_these_classes(words, sentencepiece):
  inference = {"contradiction": "No", "entailment": "Yes", "neutral": "Maybe"}
  entailment, same = {"entailment": "Yes", "not_entailment": "No"}, {"0": "No", "1": "Yes"}
  expected = {"mnli": inference, "snli": inference, "qnli": entailment, "rte": entailment}
  expected |= {"mrpc": same, "qqp": same, "stsb": {}}
  expected |= {"sst2": {"0": "terrible", "1": "great"}, "cola": {"0": "incorrect", "1": "correct"}}
  assert {task: dict(zip(TASKS[task].labels, TEMPLATES[task].words)) for task in TEMPLATES} == expected
  assert TEMPLATES["stsb"].words == ("No", "Yes")
  for task, template in TEMPLATES.items():
    found = pieces_of(words, PromptWriter(template, words).word_ids)
    assert found == " ".join(template.words).lower(), task
  ids = prompt_templates.check_words(sentencepiece, ("No", "Yes", "Maybe"))
  assert pieces_of(sentencepiece, ids) == "▁no ▁yes ▁maybe"


def test_label_words_are_different_pieces_of_the_vocabulary_one_per_class(words):
  for given, phrase in (
    (("no", "unsure"), r"'unsure' .* is un ##sure; .*\n  --config\.prompt\.words="),
    (("中", "no"), r"'中' .* is \[UNK\]"),
    (("No", "no"), "'No' and 'no' are the same piece no"),
  ):
    with pytest.raises(ConfigError, match=phrase):
      prompt_templates.check_words(words, given)
  template = TEMPLATES["mnli"]
  assert prompt_templates.choose_words(template) == ("No", "Yes", "Maybe")
  assert prompt_templates.choose_words(template, "a, b ,c") == ("a", "b", "c")
  for given in ("a,b", "a,,c"):
    with pytest.raises(ConfigError, match=r"2 words, expected 3.*\n.*=No,Yes,Maybe"):
      prompt_templates.choose_words(template, given)
