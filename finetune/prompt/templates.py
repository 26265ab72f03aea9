"""LM-BFF's manual templates and label words: they turn an example into a sentence with a masked word.

The model predicts the masked word; each class has one word. Source of templates, words, lengths and numbers
of samples: Gao et al. 2021 (LM-BFF) table 1 and its run_experiment.sh.
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
  """Words of a template. Without a leading space, they follow the part before without a space."""

  text: str


@dataclasses.dataclass(frozen=True)
class Sentence:
  """The first or the second sentence of the example, in a template."""

  number: int  # 0 or 1
  without_last: bool = False  # remove its last character, whatever it is: the template has another
  lower_first: bool = False  # its first letter in lower case: it continues a sentence


@dataclasses.dataclass(frozen=True)
class Mask:
  """The position of the label word, in a template: [MASK], or the word in a demonstration."""


@dataclasses.dataclass(frozen=True)
class Template:
  """The template of a task, with its label words, length and number of samples."""

  parts: tuple[Text | Sentence | Mask, ...]
  words: tuple[str, ...]  # one per class, in class order; for a regression, the lowest and highest score
  max_length: int = 128  # tokens of query and demonstrations together
  num_samples: int = 16  # sets of demonstrations whose logits are averaged in evaluation
  is_regression: bool = False

  @property
  def num_sentences(self) -> int:
    """The number of sentences in an example: 1, or 2 for pairs."""
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
  """Returns label words in class order: those in `override`, separated by commas, or the template's.

  ConfigError: `override` does not have one word for each class.
  """
  if not override.strip():
    return template.words
  words = tuple(word.strip() for word in override.split(","))
  if len(words) != len(template.words) or not all(words):
    raise ConfigError(
      f"--config.prompt.words={override} has {len([word for word in words if word])} words, expected "
      f"{len(template.words)}, one per class:\n  --config.prompt.words={','.join(template.words)}"
    )
  return words


def check_words(vocabulary: Vocabulary, words: Sequence[str]) -> tuple[int, ...]:
  """Returns the id of each label word, encoded as a word of running text, after a space.

  ConfigError: a word is not one piece of this vocabulary, or two classes have the same piece.
  """
  word_of: dict[int, str] = {}
  for word in words:
    ids = vocabulary.encode(vocabulary.behind_space(word))
    pieces = " ".join(vocabulary.piece(i) for i in ids)
    if len(ids) != 1 or ids[0] == vocabulary.special_ids.unk:
      raise ConfigError(
        f"the label word {word!r} must be one piece of the vocabulary, but is {pieces or 'nothing'}; use "
        "words of one piece, one per class, in class order:\n  --config.prompt.words=WORD,WORD"
      )
    if ids[0] in word_of:
      raise ConfigError(
        f"the label words {word_of[ids[0]]!r} and {word!r} are the same piece {pieces}; use another word "
        "for each class:\n  --config.prompt.words=WORD,WORD"
      )
    word_of[ids[0]] = word
  return tuple(word_of)


class Prompt(NamedTuple):
  """An example in its template, as token ids, with the position of the label word."""

  ids: np.ndarray  # [length] int32 without [CLS], with the last [SEP]
  position: int  # of [MASK] or the label word


class PromptWriter:
  """Writes examples in the template of a task, as token ids of a vocabulary.

  Parts are encoded one by one, as in LM-BFF. A part that follows without a space is encoded after a word, so
  that "?" becomes the piece of running text, not the piece of a question mark after a space.
  """

  def __init__(self, template: Template, vocabulary: Vocabulary, words: Sequence[str] = ()) -> None:
    """Encodes the template and its label words, replaced by `words` if any; errors as of `check_words`."""
    words = tuple(words) or template.words
    self.template, self.vocabulary = template, vocabulary
    self.word_ids = check_words(vocabulary, words)
    texts = (part for part in template.parts if isinstance(part, Text))
    self._texts = {part: self._encode_text(part.text, words[0]) for part in texts}
    self.num_fixed = 2 + sum(len(ids) for ids in self._texts.values())  # with the gap and [SEP]

  def _encode_text(self, text: str, word: str) -> list[int]:
    if text.startswith(" "):
      return self.vocabulary.encode(text)
    # Any word would do; this one is certainly one piece.
    behind = self.vocabulary.encode(self.vocabulary.behind_space(word) + text)
    return behind[1:] if behind[:1] == [self.word_ids[0]] else self.vocabulary.encode(text)

  def _encode_sentence(self, part: Sentence, sentences: Sequence[str]) -> list[int]:
    text = sentences[part.number]
    text = text[:-1] if part.without_last else text
    text = text[:1].lower() + text[1:] if part.lower_first else text
    is_first = part == self.template.parts[0]
    return self.vocabulary.encode(text if is_first else self.vocabulary.behind_space(text))

  def write(self, sentences: Sequence[str], *, word_id: int | None = None, room: int | None = None) -> Prompt:
    """Returns the prompt of an example's one or two sentences, with label word `word_id` or [MASK].

    With more ids than `room`, the ends of the sentences are truncated, the longer sentence first, but never
    the template; if the template alone is too long, a ConfigError. (LM-BFF truncates the whole sequence and
    fails if [MASK] is lost.)
    """
    parts = [part for part in self.template.parts if isinstance(part, Sentence)]
    encoded = {part.number: self._encode_sentence(part, sentences) for part in parts}
    if room is not None:
      if room < self.num_fixed:
        raise ConfigError(
          f"--config.prompt.max_length leaves {room} tokens after [CLS], but the template alone has "
          f"{self.num_fixed}; use longer prompts:\n  --config.prompt.max_length=128"
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
