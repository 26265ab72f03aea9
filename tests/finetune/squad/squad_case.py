"""Questions that a tiny encoder can learn: who and when have an answer in every context, where has none."""

import dataclasses
import json
import pathlib

from configs import finetune_base
from data import vocabulary
from data.vocabulary import Vocabulary
from finetune.squad.windows import Settings, settings_of

PIECES = (
  *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
  *("who", "when", "where", "?", "ann", "met", "bob", "eve", "in", "1895", "1943", "and", "then", "."),
)
ANSWERS = {"Who?": ("Bob", "Eve"), "When?": ("1895", "1943")}


def settings(**changes: int) -> Settings:
  """Those of the base config with windows of 384 tokens, but for `changes`."""
  usual = settings_of(finetune_base.get_config(), 384)
  return dataclasses.replace(usual, **changes)


def make_vocabulary(directory: pathlib.Path) -> Vocabulary:
  """Whole words, in `<directory>/vocabulary`."""
  (directory / "vocabulary").mkdir(parents=True)
  (directory / "vocabulary" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
  return vocabulary.write_description(directory / "vocabulary", kind="wordpiece", cased=False)


def contexts(count: int) -> list[str]:
  """Different ones."""
  made = []
  for number in range(count):
    name, year = ANSWERS["Who?"][number % 2], ANSWERS["When?"][number // 2 % 2]
    made.append(f"{'Ann and then ' * (number // 4)}Ann met {name} in {year}.")
  return made


def write(path: pathlib.Path, texts: list[str], *, version: str = "2.0", name: str = "q") -> pathlib.Path:
  """A file of the official layout: who, when and, in 2.0, where of every context."""
  paragraphs = []
  for number, text in enumerate(texts):
    questions = []
    for asked in ("Who?", "When?", *(["Where?"] if version == "2.0" else [])):
      found = [answer for answer in ANSWERS.get(asked, ()) if answer in text]
      entry = {
        "id": f"{name}{number}{asked}",
        "question": asked,
        "answers": [{"text": answer, "answer_start": text.index(answer)} for answer in found],
      }
      questions.append(entry | ({"is_impossible": not found} if version == "2.0" else {}))
    paragraphs.append({"context": text, "qas": questions})
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}))
  return path
