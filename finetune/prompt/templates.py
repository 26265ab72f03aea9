"""LM-BFF's templates and label words, and prompts with demonstrations made by them.

A template turns an example into a sentence with a masked word, which the model predicts; each class has one
word. A prompt is a query, then one solved example of each class, in one sequence. Source: Gao et al. 2021
(LM-BFF) section 6 and table 1, src/dataset.py without its filter by similarity, and run_experiment.sh.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data.errors import ConfigError, DataError, counted
from data.glue.tasks import Split
from data.vocabulary import Vocabulary
from data.vocabulary.official import truncate_pair
from finetune.search.examples import Buckets, Examples, TrainingOrder, pad


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


_MIDDLE_SCORE = 2.5  # STS-B examples up to this score demonstrate the low word (LM-BFF's median)
_TRAINING, _EVALUATION = 101, 102  # different random streams


@dataclasses.dataclass(frozen=True)
class Pool:
  """A few-shot training set: each example as a prompt with [MASK], and as a solved example."""

  queries: list[Prompt]  # n, with [CLS] and [MASK]
  demonstrations: list[np.ndarray]  # n x [length] int32, with the label word, without [CLS]
  labels: np.ndarray  # [n] int32 classes, or float32 scores of a regression
  classes: np.ndarray  # [n] int32, index of the label word in each demonstration
  members: tuple[np.ndarray, ...]  # for each class, [members] int64 indices of its examples


def make_pool(writer: PromptWriter, split: Split, *, max_length: int) -> Pool:
  """Returns the prompts of a labelled training set, each of at most `max_length` tokens with [CLS].

  Raises:
    DataError: labels or sentences are missing, a label is no class, or a class has fewer than two examples (a
      query needs another example of its class).
  """
  queries, labels = make_queries(writer, split, max_length=max_length)
  if labels is None:
    raise DataError(f"{split.source}: no labels, but demonstrations need them; use a labelled training set")
  classes = (labels > _MIDDLE_SCORE).astype(np.int32) if writer.template.is_regression else labels
  sentences = _sentences(split)
  demonstrations = [
    writer.write(texts, word_id=writer.word_ids[number], room=max_length - 1).ids
    for texts, number in zip(sentences, classes)
  ]
  members = tuple(np.flatnonzero(classes == number) for number in range(len(writer.word_ids)))
  for number, rows in enumerate(members):
    if len(rows) < 2:
      raise DataError(
        f"{split.source}: {counted(len(rows), 'example')} of class {number}, expected 2 or more, because "
        "a query needs another example of its class; use more per class:\n  --config.prompt.shots=16"
      )
  return Pool(queries, demonstrations, labels, classes, members)


def make_queries(
  writer: PromptWriter, split: Split, *, max_length: int
) -> tuple[list[Prompt], np.ndarray | None]:
  """Returns prompts with [CLS] and [MASK], and their labels or None; errors as of `make_pool`."""
  has_pairs = split.second is not None
  if has_pairs != (writer.template.num_sentences == 2) or not len(split.first):
    raise DataError(
      f"{split.source}: {counted(len(split.first), 'example')} of {counted(1 + has_pairs, 'sentence')} each, "
      f"expected at least one example of {writer.template.num_sentences}; check --config.tasks and the file"
    )
  cls = np.asarray([writer.vocabulary.special_ids.cls], np.int32)
  prompts = [writer.write(texts, room=max_length - 1) for texts in _sentences(split)]
  queries = [Prompt(np.concatenate([cls, prompt.ids]), prompt.position + 1) for prompt in prompts]
  return queries, None if split.labels is None else _checked_labels(writer, split.labels, split.source)


def _sentences(split: Split) -> list[tuple[str, ...]]:
  return list(zip(split.first)) if split.second is None else list(zip(split.first, split.second))


def _checked_labels(writer: PromptWriter, labels: np.ndarray, source: str) -> np.ndarray:
  if writer.template.is_regression:
    return np.asarray(labels, np.float32)
  count = len(writer.word_ids)
  wrong = np.flatnonzero((np.asarray(labels) < 0) | (np.asarray(labels) >= count))
  if len(wrong):
    raise DataError(
      f"{source}: label {labels[wrong[0]]} of example {wrong[0]}, expected 0 to {count - 1}; check the file"
    )
  return np.asarray(labels, np.int32)


def draw(pool: Pool, generator: np.random.Generator, query: int | None = None) -> list[int]:
  """Returns indices of random examples, one per class in class order, but never the example `query`."""
  chosen = []
  for number, rows in enumerate(pool.members):
    if query is not None and pool.classes[query] == number:
      rows = rows[rows != query]
    chosen.append(int(rows[generator.integers(len(rows))]))
  return chosen


def join(query: Prompt, demonstrations: Sequence[np.ndarray], max_length: int) -> np.ndarray:
  """Returns query and demonstrations as one sequence, truncated to `max_length`; never cuts the query."""
  return np.concatenate([query.ids, *demonstrations])[:max_length]


def _examples(queries: Sequence[Prompt], ids: list[np.ndarray], labels: np.ndarray | None) -> Examples:
  fields = {"mask_position": np.asarray([query.position for query in queries], np.int32)}
  return Examples(ids, fields if labels is None else fields | {"labels": labels}, {})


class TrainingFeed:
  """Training batches of a run; a batch depends only on its step, so resumed runs are exact.

  An epoch has every example once, in an order drawn by the seed; each row of a step has new demonstrations.
  All rows have the length `max_length`: dropout depends on the shape, so the shape must not depend on the
  draws.
  """

  def __init__(self, pool: Pool, seed: int, *, batch_size: int, max_length: int, pad_id: int) -> None:
    """Draws the order of the examples of a training set, `pool`, by the run's seed."""
    self._pool, self._seed = pool, seed
    self._sizes = {"length": max_length, "batch_size": batch_size, "pad_id": pad_id}
    buckets = Buckets((max_length,), (np.arange(len(pool.queries)),))
    self._order = TrainingOrder(buckets, batch_size, shape_seed=0)

  def __call__(self, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step, from 0: 'ids' [batch, length]; other fields are [batch]."""
    pool, (_, rows) = self._pool, self._order.batch(self._seed, step)
    generator = np.random.default_rng((_TRAINING, self._seed, step))
    shown = ([pool.demonstrations[i] for i in draw(pool, generator, row)] for row in rows)
    ids = [join(pool.queries[row], of_row, self._sizes["length"]) for row, of_row in zip(rows, shown)]
    examples = _examples([pool.queries[row] for row in rows], ids, pool.labels[rows])
    return pad(examples, range(len(ids)), **self._sizes)


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
  """The prompts of a development or test set, each with its demonstrations."""

  examples: Examples  # num_samples x n, first the n with their first demonstrations
  num_samples: int  # sets of demonstrations for each example


def make_evaluation_set(
  writer: PromptWriter, split: Split, pool: Pool, *, seed: int, num_samples: int, max_length: int
) -> EvaluationSet:
  """Returns prompts for a development or test set, each with demonstrations drawn from `pool` by `seed`.

  Each example, labelled or not, has `num_samples` sequences with different demonstrations. Sequences are
  truncated to `max_length` tokens, as in the official code. Errors are as of `make_pool`.
  """
  queries, labels = make_queries(writer, split, max_length=max_length)
  generator = np.random.default_rng((_EVALUATION, seed))
  queries = queries * num_samples
  ids = [
    join(query, [pool.demonstrations[i] for i in draw(pool, generator)], max_length) for query in queries
  ]
  labels = None if labels is None else np.tile(labels, num_samples)
  return EvaluationSet(_examples(queries, ids, labels), num_samples)
