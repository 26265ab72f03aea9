"""A few-shot example as a sentence with a gap: LM-BFF's manual templates and label words, and their ids.

Source of templates, words, lengths and numbers of samples: Gao et al. 2021 (LM-BFF) table 1 and its
run_experiment.sh. The model is asked for the word in the gap, one word per class.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.errors import ConfigError
from data.vocabulary import Vocabulary
from data.vocabulary.official import truncate_pair


@dataclasses.dataclass(frozen=True)
class Text:
  """Words of the template. Without a leading space they stand directly behind what comes before."""

  text: str


@dataclasses.dataclass(frozen=True)
class Sentence:
  """One of the example's sentences."""

  number: int  # 0 or 1
  without_last: bool = False  # its last character, whatever that is, makes room for the template's
  lower_first: bool = False  # it goes on in the middle of a sentence


@dataclasses.dataclass(frozen=True)
class Mask:
  """The gap."""


@dataclasses.dataclass(frozen=True)
class Template:
  """What a task's examples look like."""

  parts: tuple[Text | Sentence | Mask, ...]
  words: tuple[str, ...]  # one per class, in class order; of a regression the low end and the high end
  max_length: int = 128  # of query and demonstrations together, in tokens
  num_samples: int = 16  # sets of demonstrations whose logits are averaged in evaluation
  is_regression: bool = False

  @property
  def num_sentences(self) -> int:
    """1, or 2 for pairs."""
    return sum(isinstance(part, Sentence) for part in self.parts)


_QUESTION = (Sentence(0, without_last=True), Text("?"), Mask(), Text(","), Sentence(1, lower_first=True))
_SAME = (Sentence(0), Mask(), Text(","), Sentence(1, lower_first=True))
_INFERENCE = Template(_QUESTION, ("No", "Yes", "Maybe"), max_length=256, num_samples=4)

TEMPLATES: dict[str, Template] = {
  "mnli": _INFERENCE,  # contradiction, entailment, neutral
  "snli": _INFERENCE,
  "sst2": Template((Sentence(0), Text(" It was"), Mask(), Text(".")), ("terrible", "great")),
  "cola": Template((Sentence(0), Text(" This is"), Mask(), Text(".")), ("incorrect", "correct")),
  "mrpc": Template(_SAME, ("No", "Yes")),
  "qqp": Template(_SAME, ("No", "Yes"), num_samples=4),
  "qnli": Template(_QUESTION, ("Yes", "No")),  # entailment, not_entailment
  "rte": Template(_QUESTION, ("Yes", "No"), max_length=256),
  "stsb": Template(_SAME, ("No", "Yes"), is_regression=True),
}


def choose_words(template: Template, override: str = "") -> tuple[str, ...]:
  """The template's label words, or the comma-separated ones of `--config.prompt.words`, in class order.

  Not one word for each class is a ConfigError.
  """
  if not override.strip():
    return template.words
  words = tuple(word.strip() for word in override.split(","))
  if len(words) != len(template.words) or not all(words):
    raise ConfigError(
      f"--config.prompt.words={override} has {len([word for word in words if word])} words, expected "
      f"{len(template.words)}, one per class as in {','.join(template.words)}"
    )
  return words


def check_words(vocabulary: Vocabulary, words: Sequence[str]) -> tuple[int, ...]:
  """The id of each label word as it stands in a text, after a space.

  A word that is not one piece of this vocabulary is a ConfigError, as are two classes with the same piece.
  """
  word_of: dict[int, str] = {}
  for word in words:
    ids = vocabulary.encode(vocabulary.behind_space(word))
    pieces = " ".join(vocabulary.piece(i) for i in ids)
    if len(ids) != 1 or ids[0] == vocabulary.special_ids.unk:
      raise ConfigError(
        f"the label word {word!r} must be one piece of the vocabulary, but is {pieces or 'nothing'}; give "
        "words that are, one per class in class order, by --config.prompt.words=WORD,WORD"
      )
    if ids[0] in word_of:
      raise ConfigError(
        f"the label words {word_of[ids[0]]!r} and {word!r} are the same piece {pieces}; give each class "
        "another by --config.prompt.words=WORD,WORD"
      )
    word_of[ids[0]] = word
  return tuple(word_of)


class Prompt(NamedTuple):
  """A filled-in template."""

  ids: np.ndarray  # [length] int32 without [CLS], with the last [SEP]
  position: int  # of the gap


class PromptWriter:
  """Fills in the template of a task in the ids of a vocabulary.

  Parts are encoded one by one, as LM-BFF does. One that stands directly behind a word is encoded behind a
  word, so that "?" gives the piece of running text and not that of a question mark after a space.
  """

  def __init__(self, template: Template, vocabulary: Vocabulary, words: Sequence[str] = ()) -> None:
    """Checks the words: one per class, none for the template's; errors as of `check_words`."""
    words = tuple(words) or template.words
    self.template, self.vocabulary = template, vocabulary
    self.word_ids = check_words(vocabulary, words)
    texts = (part for part in template.parts if isinstance(part, Text))
    self._texts = {part: self._encode_text(part.text, words[0]) for part in texts}
    self.num_fixed = 2 + sum(len(ids) for ids in self._texts.values())  # with the gap and [SEP]

  def _encode_text(self, text: str, word: str) -> list[int]:
    if text.startswith(" "):
      return self.vocabulary.encode(text)
    # Any word would do, but this one is known to be one piece.
    behind = self.vocabulary.encode(self.vocabulary.behind_space(word) + text)
    return behind[1:] if behind[:1] == [self.word_ids[0]] else self.vocabulary.encode(text)

  def _encode_sentence(self, part: Sentence, sentences: Sequence[str]) -> list[int]:
    text = sentences[part.number]
    text = text[:-1] if part.without_last else text
    text = text[:1].lower() + text[1:] if part.lower_first else text
    is_first = part == self.template.parts[0]
    return self.vocabulary.encode(text if is_first else self.vocabulary.behind_space(text))

  def write(self, sentences: Sequence[str], *, word_id: int | None = None, room: int | None = None) -> Prompt:
    """One example of one or two sentences, its gap filled with the id of a word, or with [MASK].

    Of more ids than `room` the ends of the sentences are cut, the longer one first, so that neither the gap
    nor the template's words are ever cut; these alone being too many is a ConfigError. (LM-BFF cuts the end
    of the whole sequence, gap or not, and stops if it is lost.)
    """
    parts = [part for part in self.template.parts if isinstance(part, Sentence)]
    encoded = {part.number: self._encode_sentence(part, sentences) for part in parts}
    if room is not None:
      if room < self.num_fixed:
        raise ConfigError(
          f"--config.prompt.max_length: {room} tokens are too few for the prompt alone, {self.num_fixed} "
          "without its sentences; use 128 or more"
        )
      kept = truncate_pair(encoded[0], encoded.get(1, []), room - self.num_fixed)
      encoded = dict(enumerate(kept))
    ids: list[int] = []
    position = 0
    for part in self.template.parts:
      if isinstance(part, Mask):
        position = len(ids)
        ids.append(self.vocabulary.special_ids.mask if word_id is None else word_id)
      else:
        ids += self._texts[part] if isinstance(part, Text) else encoded[part.number]
    ids.append(self.vocabulary.special_ids.sep)
    return Prompt(np.asarray(ids, np.int32), position)
