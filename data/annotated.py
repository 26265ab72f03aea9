"""Reads annotated text: Universal Dependencies, SemEval relations, and minimal pairs such as BLiMP's.

All annotations are about words, because probes ask about words; each word is tokenised by itself.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from data import rows
from data.errors import DataError, counted
from data.glue import tsv
from data.glue.tasks import known_task
from data.glue.tsv import existing
from data.rows import Row

_MARK = re.compile(r"(</?e[12]>)")
_NUMBERED = re.compile(r'\d+\t"?(.*?)"?\s*')
# Singular and plural forms of verbs; only the subject decides which is right.
_FORMS = (("is", "are"), ("was", "were"), ("has", "have"), ("does", "do"))
_OTHER_FORM = {one: other for pair in _FORMS for one, other in (pair, pair[::-1])}


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A sentence of Universal Dependencies; each field has one entry per word."""

  words: tuple[str, ...]
  tags: tuple[str, ...]  # UPOS
  heads: tuple[int, ...]  # index, from 0, of the word on which this one depends; -1: the root
  relations: tuple[str, ...]  # dependency relation to the head, without subtypes


@dataclasses.dataclass(frozen=True)
class Relation:
  """A sentence with two marked spans of words, [start, end), and the relation between them."""

  words: tuple[str, ...]
  spans: tuple[tuple[int, int], tuple[int, int]]
  label: str


@dataclasses.dataclass(frozen=True)
class MinimalPair:
  """A grammatical sentence and an ungrammatical one that differ in few words."""

  good: tuple[str, ...]  # words
  bad: tuple[str, ...]


def treebank(directory: pathlib.Path, split: str) -> pathlib.Path | None:
  """Returns the CoNLL-U file of a split ('train', 'dev', 'test') of UD's English EWT, or None.

  `directory` is the folder of the release, or its parent.
  """
  return _split(directory, "UD_English-EWT", f"*-ud-{split}*.conllu*")


def entities(directory: pathlib.Path, split: str) -> pathlib.Path | None:
  """Returns the file of a split ('dev', 'test') of UNER English EWT, or None; folders as for `treebank`."""
  return _split(directory, "UNER_English-EWT", f"*-ud-{split}*.iob2*")


def _split(directory: pathlib.Path, name: str, pattern: str) -> pathlib.Path | None:
  folders = [folder for folder in (directory, directory / name) if folder.is_dir()]
  return next((path for folder in folders for path in sorted(folder.glob(pattern))), None)


def glue_folder(directory: pathlib.Path, task: str, splits: Sequence[str]) -> pathlib.Path | None:
  """Returns the folder that has these splits of a GLUE task: `directory`/glue, else `directory`, or None."""
  folders = (directory / "glue", directory)
  return next((at for at in folders if all(tsv.find(at, known_task(task), split) for split in splits)), None)


def sentences(path: pathlib.Path) -> list[Sentence]:
  """Returns the sentences of a CoNLL-U file; DataError if there are none or a line is malformed."""
  read = [_sentence(row) for row in rows.read_conll(str(path))]
  if not read:
    raise DataError(f"{path}: no sentence; expected the 10 columns of CoNLL-U; copy the file again")
  return read


def _sentence(row: Row) -> Sentence:
  if len(row.fields) != 10:
    row.refuse(
      f"{counted(len(row.fields), 'column')}, expected CoNLL-U's 10; give a file of Universal Dependencies"
    )
  columns = [tuple(row.fields[str(number)]) for number in range(1, 11)]
  try:
    heads = tuple(int(head) - 1 for head in columns[6])
  except ValueError:
    row.refuse("a head that is no number; correct the 7th column")
  if not all(-1 <= head < len(heads) for head in heads):
    row.refuse("a head that is no word of its sentence; correct the 7th column")
  relations = tuple(relation.partition(":")[0] for relation in columns[7])
  return Sentence(columns[1], columns[3], heads, relations)


def relation_files(directory: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path] | None:
  """Returns the training and test file of SemEval-2010 task 8 in a folder or its subfolder, or None."""
  for folder in (directory, directory / "SemEval2010_task8"):
    train, test = (existing(folder / f"{name}.TXT") for name in ("TRAIN_FILE", "TEST_FILE_FULL"))
    if train and test:
      return train, test
  return None


def relations(path: pathlib.Path) -> list[Relation]:
  """Reads a file of SemEval-2010 task 8, four lines each: number and text, label, comment, blank line."""
  examples, text = [], None
  for row in rows.read(str(path)):
    line = row.fields["text"]
    if numbered := _NUMBERED.fullmatch(line):
      text = numbered.group(1)
    elif text is not None:
      examples.append(_relation(row, text, line.strip()))
      text = None
  if not examples:
    raise DataError(f'{path}: no sentence; expected lines such as 1<TAB>"The <e1>child</e1> ..."')
  return examples


def _relation(row: Row, text: str, label: str) -> Relation:
  words: list[str] = []
  borders: dict[str, int] = {}
  for piece in _MARK.split(text):
    if _MARK.fullmatch(piece):
      borders[piece] = len(words)
    else:
      words += piece.split()
  spans = [(borders.get(f"<e{n}>", 0), borders.get(f"</e{n}>", 0)) for n in (1, 2)]
  if any(first >= behind for first, behind in spans):
    row.refuse("the sentence before this line lacks <e1>...</e1> or <e2>...</e2>; correct or remove it")
  return Relation(tuple(words), (spans[0], spans[1]), label)


def minimal_pairs(directory: pathlib.Path) -> dict[str, list[MinimalPair]]:
  """Returns {file name: its pairs} of files in BLiMP's layout: *.jsonl, sentence_good and sentence_bad."""
  by_file = {}
  for folder in (directory, directory / "blimp"):
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
      read = rows.read(str(path))
      by_file[path.stem] = [
        MinimalPair(*(tuple(str(row.value(f"sentence_{kind}")).split()) for kind in ("good", "bad")))
        for row in read
      ]
  return by_file


def agreement_pairs(parsed: Iterable[Sentence]) -> Iterator[MinimalPair]:
  """Yields pairs for subject-verb agreement with a noun as subject: 'the keys are' and 'the keys is'."""
  for sentence in parsed:
    for at, word in enumerate(sentence.words):
      other = _OTHER_FORM.get(word)
      if other is None or not _has_noun_subject(sentence, at):
        continue
      bad = (*sentence.words[:at], other, *sentence.words[at + 1 :])
      yield MinimalPair(sentence.words, bad)


def _has_noun_subject(sentence: Sentence, verb: int) -> bool:
  """Returns whether `verb` must agree in number with a single noun before it, its subject."""
  is_auxiliary = sentence.relations[verb] in ("aux", "cop")
  predicate = sentence.heads[verb] if is_auxiliary else verb
  of_predicate = [at for at, head in enumerate(sentence.heads) if head == predicate]
  subjects = [at for at in of_predicate if sentence.relations[at] == "nsubj"]
  if len(subjects) != 1 or subjects[0] > verb or sentence.tags[subjects[0]] not in ("NOUN", "PROPN"):
    return False
  # Only the first of several verbs agrees with the subject: 'did' in 'did not have'.
  if any(sentence.relations[at] in ("aux", "cop") and at < verb for at in of_predicate):
    return False
  # In 'a number of people are' and 'Tom and Ann are' the noun alone does not decide.
  below = {sentence.relations[at] for at, head in enumerate(sentence.heads) if head == subjects[0]}
  return not below & {"conj", "nmod"}
