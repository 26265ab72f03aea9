"""Mines hard negatives: `python -m finetune.mine --model=DIR --data=pairs.jsonl --output=triplets.jsonl`.

`--help` lists the flags and the exit codes.
"""

import argparse
import logging
import math
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import command, output_files
from data.command import FETCHED, OPENED, Parser
from data.errors import ConfigError
from data.rows import Row
from data.rows.read import STANDARD_INPUT, TEXT
from finetune.embedding import mining, retrieval
from finetune.embedding.mining import NEGATIVE_SCORES, NEGATIVES, POSITIVE_SCORE, Pairs, Passages, Rule
from pretrain.command import keep_temporaries

logger = logging.getLogger(__name__)

_VECTOR = "vector"
_BLOCK = 16384  # passages searched at once
_EPILOG = f"""\
Each row of the output is a row of the input, in order, with the columns {NEGATIVES!r}, a list of passages
that are near the query but are not its positives, {POSITIVE_SCORE!r} and {NEGATIVE_SCORES!r} (cosines).
Passages are all positives of the file, or those of --corpus. A passage is left out if it is a positive of the
query in any row, has the same text as one, or is nearly as near as the row's positive (--relative_margin,
--margin): it may answer the query too. Case, spaces, Unicode form and the title of a BEIR passage make no
other text, and copies of a passage are one. The file appears when all rows are done; a killed command begins
again, and makes the same file. It never overwrites a file.

  python -m finetune.mine --model=runs/embedding/model --data=pairs.jsonl --output=triplets.jsonl
  python -m finetune.mine --model=runs/embedding/model --data=pairs.jsonl --corpus=corpus.jsonl.gz \\
    --negatives=7 --depth=200 --seed=0 --output=triplets.jsonl

Exit codes: 0 finished; 2 flags; 3 data, vocabulary or checkpoint; 5 storage; 75 stopped on request, the same
command begins again.
"""


def parser() -> Parser:
  """Returns the parser of the command's flags."""
  made = Parser(
    prog="python -m finetune.mine",
    description="Adds hard negatives to pairs of queries and passages, found by an embedding model.",
    epilog=_EPILOG,
  )
  made.add_argument("--model", required=True, bucket=OPENED, help="folder of the model that searches")
  made.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
  made.add_argument(
    "--vocabulary", default="", bucket=FETCHED, help="directory; default: the one beside the checkpoint"
  )
  made.add_argument(
    "--data",
    required=True,
    bucket=FETCHED,
    help="pairs in CSV, TSV, JSONL or Parquet, with columns such as 'query' and 'positive'",
  )
  made.add_argument(
    "--corpus",
    default="",
    bucket=FETCHED,
    help="file with a passage in each row, also corpus.jsonl of BEIR; default: the positives of --data",
  )
  made.add_argument("--text", default="", help="column of the query; default: guessed by its name")
  made.add_argument("--text_pair", default="", help="column of the positive; default: guessed by its name")
  made.add_argument("--output", required=True, help="triplets.jsonl")
  made.add_argument("--negatives", type=int, default=1, help="most negatives of a row")
  made.add_argument("--depth", type=int, default=100, help="nearest passages of a query to choose from")
  made.add_argument("--skip", type=int, default=0, help="nearest candidates to leave out")
  made.add_argument(
    "--relative_margin",
    type=float,
    default=0.95,
    help="a negative's cosine is at most the positive's times this; 1: no such limit",
  )
  made.add_argument(
    "--margin", type=float, default=0.0, help="a negative's cosine is at most the positive's minus this"
  )
  made.add_argument(
    "--seed", type=int, help="draw the negatives from the candidates; default: take the nearest"
  )
  made.add_argument("--batch_size", type=int, default=32, help="texts in a batch")
  return made


def _rule(asked: argparse.Namespace) -> Rule:
  command.refuse_below_one(asked, "batch_size", "negatives", "depth")
  if STANDARD_INPUT in (asked.data, asked.corpus):
    raise ConfigError("--data and --corpus are read several times, but a pipe only once; give files")
  for flag in ("skip", "seed", "margin"):
    value = getattr(asked, flag) or 0
    if not 0 <= value < math.inf:
      raise ConfigError(f"--{flag}={value}: expected at least 0")
  if not 0 < asked.relative_margin <= 1:
    raise ConfigError(f"--relative_margin={asked.relative_margin}: expected a number above 0 and at most 1")
  if asked.skip + asked.negatives > asked.depth:
    raise ConfigError(
      f"--depth={asked.depth}: fewer passages than --skip={asked.skip} and --negatives={asked.negatives} "
      f"need; use\n  --depth={2 * (asked.skip + asked.negatives)}"
    )
  return Rule(asked.negatives, asked.skip, asked.margin, asked.relative_margin, asked.seed)


class _Command:
  """One run: checked flags, the pairs and passages that were read once, and the opened model."""

  def __init__(self, asked: argparse.Namespace) -> None:
    self.asked, self.rule = asked, _rule(asked)
    self.form = output_files.choose(asked.output, {".jsonl": output_files.JsonLines})
    self.output = pathlib.Path(asked.output)
    output_files.refuse_existing(self.output)
    self.pairs = Pairs(asked.data, text=asked.text, text_pair=asked.text_pair)
    self.passages = Passages()
    self.survey = output_files.survey(asked.data, self.pairs.add)
    self.source, self.text = asked.data, self.pairs.passage
    if asked.corpus:
      self.source, self.text = asked.corpus, mining.corpus_text(asked.corpus, self.pairs.positive)
    has_titles = self.text is retrieval.passage
    self.rows = output_files.survey(
      self.source, lambda row: self.passages.add(row, self.text(row), row.text(TEXT) if has_titles else "")
    )
    self.embedder = self._opened()

  def _opened(self):
    # Imported here, so that mistakes in flags and rows are reported at once.
    from pretrain.checkpoints.saved_model import open_model
    from pretrain.embed.schema import EmbeddingSchema
    from pretrain.embed.vectors import Embedder
    from pretrain.mesh import devices

    devices.start()
    saved = open_model(self.asked.model, self.asked.step)
    encoder = saved.open_encoder(self.asked.vocabulary, flag="--vocabulary")
    return Embedder(encoder, EmbeddingSchema.read(saved.workdir), batch_size=self.asked.batch_size)

  def run(self) -> None:
    """Writes the vectors of all passages to a temporary file, then the rows with their negatives."""
    from pretrain.inference import stream

    asked, sizes = self.asked, {"batch_size": self.asked.batch_size, "total": self.survey.rows}
    folder = self.output.absolute().parent
    with (
      output_files.opened(self.output, self.form) as write,  # creates the folder
      tempfile.TemporaryDirectory(prefix=".mine-", dir=folder) as beside,
    ):
      compute = self._negatives(self._vectors(pathlib.Path(beside) / "passages.npy"))
      stream.answer(asked.data, self._inputs, compute, **sizes, write=write)
    logger.info(f"{self.output}: {mining.described(self.output, self.rule)}")

  def _vectors(self, path: pathlib.Path) -> np.ndarray:
    """Returns the vectors of all passages [passages, width] float32, mapped from a new file `path`."""
    from pretrain.inference import stream

    embedder, fresh = self.embedder, self.passages.fresh

    def prepare(part: list[Row]) -> list[Any]:
      return embedder.inputs([self.text(row) for row in part if row.number in fresh])

    def compute(_: list[Row], inputs: list[Any]) -> list[dict[str, Any]]:
      return [{_VECTOR: vector} for vector in embedder.vectors(inputs)] if inputs else []

    sizes = {"batch_size": self.asked.batch_size, "total": self.rows.rows}
    with output_files.opened(path, lambda file: output_files.Npy(file, _VECTOR, embedder.width)) as write:
      stream.answer(self.source, prepare, compute, **sizes, write=write)
    return np.load(path, mmap_mode="r", allow_pickle=False)

  def _inputs(self, part: list[Row]) -> list[Any]:
    """Returns the token ids of the queries, then of the positives that the corpus lacks."""
    positives = [self.pairs.passage(row) for row in part]
    lacking = [text for text in positives if self.passages.number(text) is None]
    queries = self.embedder.inputs([row.text(self.pairs.query) for row in part], "query")
    return [*queries, *self.embedder.inputs(lacking)]

  def _negatives(self, vectors: np.ndarray):
    """Returns the function that computes a part's rows, from the `vectors` of all passages."""
    from finetune.embedding.nearest import NearestPassages
    from pretrain.embed.schema import unit

    block = min(_BLOCK, len(vectors))
    depth = min(self.asked.depth, len(vectors))

    def compute(part: list[Row], inputs: list[Any]) -> list[dict[str, Any]]:
      made = unit(self.embedder.vectors(inputs))
      queries, lacking = made[: len(part)], iter(made[len(part) :])
      nearest = NearestPassages(queries, depth, block=block)
      for at in range(0, len(vectors), block):
        nearest.add(np.asarray(vectors[at : at + block]))
      rows = []
      for row, query, cosines, numbers in zip(part, queries, *nearest.results()):
        number = self.passages.number(self.pairs.passage(row))
        positive = float(query @ (next(lacking) if number is None else unit(vectors[number])))
        rows.append(self._with_negatives(row, positive, cosines, numbers))
      return rows

    return compute

  def _with_negatives(
    self, row: Row, positive: float, cosines: np.ndarray, numbers: np.ndarray
  ) -> dict[str, Any]:
    known = self.pairs.known(row.text(self.pairs.query), self.passages)
    chosen = self.rule.choose(cosines, numbers, positive=positive, known=known, row=row.number)
    return {
      **row.fields,
      NEGATIVES: [self.passages.texts[numbers[at]] for at in chosen],
      POSITIVE_SCORE: round(positive, 6),
      NEGATIVE_SCORES: [round(float(cosines[at]), 6) for at in chosen],
    }


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return command.run(lambda: _Command(parser().parse_args(argv)).run())


if __name__ == "__main__":
  keep_temporaries()
  sys.exit(main())
